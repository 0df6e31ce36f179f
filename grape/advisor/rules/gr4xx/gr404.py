"""GR404 hidden-state: the region writes Python state that a replay would not write.

Sees: the runtime's refusal: an attribute, list or closure changed during the call, or two traces of equal calls
differ; and, in the source of the region, the statement that writes it. Costs: the region stays eager, since a replay
runs no Python. Fix: return the state, or keep it in a tensor that is updated in place. Wrong when: the state does not
matter (a debug counter); remove it from the hot path and the region can be captured.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ....model import CellEvidence, Finding, Position, Reason, Refused, RegionEvidence
from ....model.times.machine import H200, MachineCosts
from ...code.parsed import last_name
from ...code.source import CellSource, cell_source
from ...refusals import callable_name, refusal_of, with_refusals
from ...static.context import Context, StaticFinding, calls_backward
from ...static.state import state_writes

CODE = "GR404"

_ADVICE = "return the state from the call and pass it back in, or keep it in a tensor that is updated in place"
_NAMED = "return `{0}` from the call and pass it back in, or keep it in a tensor that is updated in place"
_EFFECT = "do it after the call, with what the call returns; or every n-th iteration, outside of the region"
_RANDOM = "draw the number with torch on the device (`torch.rand((), device=...)`), or draw it outside and pass it in"
_DEPTH = 3


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    return (_named(evidence, finding) for finding in with_refusals(CODE, evidence, (), _ADVICE))


def _named(evidence: CellEvidence, finding: Finding) -> Finding:
    """The finding at the statement that writes, where the source shows one and the refusal names no other line."""
    known = refusal_of(evidence, finding)
    if known is None:
        return finding
    region, refusal = known
    if refusal.reason is Reason.CALLS:
        seldom = cell_source(evidence).every_nth(finding.at)
        advice = _RANDOM if "random" in refusal.detail("call") else _EFFECT.partition(";")[0] if seldom else _EFFECT
        return replace(finding, advice=advice)
    writes = tuple(dict.fromkeys(_writes(cell_source(evidence), region)))
    likely = [write for write in writes if _is_named(write[1], refusal)]
    if refusal.at is None or refusal.at == region.at:
        likely = likely or list(writes)
    if not likely:
        return finding
    at, name = likely[0]
    others = len({written for _, written in likely}) - 1
    more = f" (and {others} more)" if others else ""
    return replace(
        finding,
        message=f"`{region.name}` changes `{name}`{more} at each call, which a replay would not: it stays eager",
        at=at,
        evidence=(*finding.evidence, ("state", name), ("why", refusal.why)),
        advice=_NAMED.format(name),
    )


def _is_named(written: str, refusal: Refused) -> bool:
    """True where the refusal is about what is `written`: by the name of an attribute or a global, or by its path."""
    return written.rpartition(".")[2] == refusal.detail("name") or written == refusal.detail("path")


def _writes(source: CellSource, region: RegionEvidence) -> Iterator[tuple[Position, str]]:
    """Statements in the region's own code, and in functions of the person's that it calls, that write outer state."""
    name = callable_name(region)
    pending, seen = [name], {name}
    for _ in range(_DEPTH):
        called: list[str] = []
        for wanted in pending:
            for file, function in source.functions(wanted):
                for node, written in state_writes(function):
                    yield Position(file=file, line=node.lineno, function=function.name), written
                for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                    callee = last_name(call.func)
                    if callee and callee not in seen:
                        seen.add(callee)
                        called.append(callee)
        pending = called


def in_source(context: Context) -> Iterator[StaticFinding]:
    """GR404: a function that computes with tensors also changes Python state outside of it."""
    kinds = context.kinds
    for function in (f for many in kinds.functions.values() for f in many):
        if not any(
            context.hot.is_hot(statement) and context.hot.loop(statement) is None for statement in function.body
        ):
            continue
        if not any(isinstance(n, ast.expr) and kinds.is_tensor(n) for n in ast.walk(function)) or calls_backward(
            function
        ):
            continue
        for node, name in state_writes(function):
            advice = "return the state and pass it back in, or keep `{}` in a tensor that is updated in place"
            message = f"`{function.name}` changes `{{}}`, which a replay would not"
            yield context.at("GR404", node, name, message, advice)
