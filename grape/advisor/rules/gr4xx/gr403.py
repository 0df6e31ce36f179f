"""GR403 scalar-dynamism: a Python number that reaches an operator changes from call to call.

Sees: scalars that differ between calls with equal shapes. Costs: a graph would freeze the first value, so the region
stays eager or needs one graph per value; an operator stream runs the operator as written. Fix: keep the number in a
0-dimensional tensor on the device and update it in place. Wrong when: the number takes few values, each many times;
then passing it as an argument gives each value its own graph.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ....model import CellEvidence, Finding, OpRecord, Reason, Refused, RegionEvidence, ScalarChange
from ....model.stream import CHANGED
from ....model.times.machine import H200, MachineCosts
from ...arguments import Arguments
from ...code.source import cell_source
from ...optimizers import advice_for_step, counts_steps
from ...refusals import refusal_of, severity_in, with_refusals
from ...static.context import Context, StaticFinding, shown
from ...stopped import Stopped, stopped_for
from ...words import ended, operator_name, via

CODE = "GR403"

_ADVICE = (
    "keep the number in a tensor on the device, made once, and update it in place (`step.add_(1)`), "
    "or pass it as an argument if it takes few values"
)
_IN_A_STREAM = "keep the number in a tensor on the device, made once, and update it in place (`step.add_(1)`)"
_ONLY_DECIDES = "leave it: `{0}` only decides what runs, and what stands behind that can replay by itself"
_SHOWN = 4
_OF_NAMES = (Reason.ARGUMENT_CHANGES, Reason.NAME_CHANGES)


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    found = [_finding(region, change) for region in evidence.regions for change in region.scalar_changes]
    source = cell_source(evidence)
    yield from (_in_a_stream(evidence, stopped) for stopped in stopped_for(evidence, CHANGED))
    for finding in with_refusals(CODE, evidence, found, _ADVICE):
        known = refusal_of(evidence, finding) if finding not in found else None
        if known is not None and known[1].reason in _OF_NAMES:  # what the line does with it is another matter
            yield _of_an_index(finding, evidence, *known) or finding
            continue
        optimizer = counts_steps(source, finding.at) if known is not None else None
        if known is not None and known[1].reason is Reason.CHANGED_NUMBER and optimizer is not None:
            said = finding.message.replace(known[1].why, f"{optimizer}'s step counter lives on the CPU")
            finding = replace(finding, message=said)
        advice = advice_for_step(source, finding.at)
        yield replace(finding, advice=advice, by_hand=True) if advice is not None else finding


def _finding(region: RegionEvidence, change: ScalarChange) -> Finding:
    values = tuple(dict.fromkeys(_plain(value) for value in change.values))
    shown = ", ".join(values[:_SHOWN]) + (", ..." if len(values) > _SHOWN else "")
    return Finding(
        code=CODE,
        severity=severity_in(region, CODE),
        message=f"a Python number that reaches {_spoken(change.operator)} in `{region.name}` changes between calls: "
        f"{shown}",
        at=change.at or region.at,
        region=region.name,
        evidence=(("operator", change.operator), ("values", values), ("distinct", len(values))),
        advice=_ADVICE,
    )


def _in_a_stream(evidence: CellEvidence, stopped: Stopped) -> Finding:
    """Operators that a stream runs as written, for their numbers are others each time."""
    source = cell_source(evidence)
    advice = None
    if not stopped.in_library:
        advice = advice_for_step(source, stopped.at, inner=stopped.inner, streamed=True)
    step = source.call(stopped.at, ("step",)) if advice is not None else None
    where = f" in `{step}`" if step is not None else via(stopped.user, stopped.inner) if stopped.in_library else ""
    return Finding(
        code=CODE,
        severity=stopped.severity(evidence),
        message=f"a Python number that reaches {stopped.spoken}{where} changes each time, so a stream runs "
        f"{'them' if len(stopped.operators) > 1 else 'it'} as written{stopped.cost(evidence)}{ended(stopped.segments)}",
        at=stopped.at,
        evidence=(*stopped.counted, *stopped.in_library),
        advice=None if stopped.in_library else advice or _IN_A_STREAM,
        by_hand=advice is not None,
    )


def _of_an_index(finding: Finding, evidence: CellEvidence, region: RegionEvidence, refusal: Refused) -> Finding | None:
    """The finding about a number that only indexes or decides: a tensor in its place would be read on the host."""
    argument = refusal.detail("argument")
    name = Arguments(evidence, region).name(argument).strip("`") if argument.startswith("args[") else argument
    if not name.isidentifier() or finding.at is None:
        return None
    source = cell_source(evidence)
    end = region.end_line or finding.at.line
    place = region.loop_line, region.at.file
    rest = any(part.replays and (part.loop_line, part.at.file) == place for part in evidence.regions)
    indexed = source.indexed_with(name, finding.at, end)
    if indexed is None:
        decided = source.decides_with(name, finding.at, end)
        if decided is None or region.loop_line is None:
            return None
        if not rest:
            return replace(finding, advice=_ONLY_DECIDES.format(name))
        message = f"`{decided[0]}` runs as written, because `{name}` changes; the rest of the loop replays"
        return replace(finding, severity="hint", message=message, advice=None)
    shown = " and ".join(f"`{text}`" for text in indexed[:2])
    if region.loop_line is None:
        return replace(finding, advice=f"take {shown} before the call, and pass that instead of `{name}`")
    if rest and source.only_indexes(finding.at):
        run = "runs" if len(indexed) == 1 else "run"
        message = f"{shown} {run} as written, because `{name}` changes; the rest of the loop replays"
        return replace(finding, severity="hint", message=message, advice=None)
    return replace(finding, advice=f"take {shown} in a line of its own, so that what works with it replays")


def _plain(value: object) -> str:
    """Traces keep a number as (type name, number), so that 1 and 1.0 and True differ."""
    if isinstance(value, tuple) and len(value) == 2 and value[0] in ("int", "float", "bool"):
        value = value[1]
    return str(value)


def _spoken(operator: str) -> str:
    return operator_name(OpRecord(0, operator, "compute", (), (), (), (), (), None, None))


def in_source(context: Context) -> Iterator[StaticFinding]:
    """GR403: the number of the iteration is passed to a function that computes with tensors."""
    kinds = context.kinds
    for node in context.model_calls():
        if not any(kinds.is_tensor(argument) for argument in node.args):
            continue
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            if kinds.of(argument) == "range" and isinstance(argument, ast.Name):
                advice = "pass `{}` as a tensor on the device, made once and updated in place"
                message = f"`{{}}` is another Python number at each call of `{shown(node.func)}`"
                yield context.at("GR403", node, argument, message, advice)
