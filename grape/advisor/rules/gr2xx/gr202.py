"""GR202 growing-state: a dimension of an argument grows by a constant from call to call.

Sees: distinct argument shapes that, in the order of their first calls, differ in one dimension by one step: a KV
cache or a token sequence that is extended by concatenation. Costs: every call has a shape of its own, hence a graph
of its own, plus the copy that the concatenation makes; operator streams run what has such sizes as written. Fix:
preallocate the final size, write by index. Wrong when: the sequence stays short; then a few graphs, captured once and
reused by later runs, are cheaper than masked work on the full size.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from ....model import CellEvidence, Finding, OpRecord, RegionEvidence, Trace
from ....model.kept import Kept
from ....model.location import line_of
from ....model.stream import GROWS
from ....model.times.machine import H200, MachineCosts
from ...arguments import Arguments
from ...code.sites import op_sites
from ...code.source import cell_source
from ...growth import Growth, growing, steady_growth
from ...refusals import served_by_graphs
from ...static.context import Context, StaticFinding
from ...stopped import Stopped, stopped_for
from ...stores import held_evidence, held_text
from ...words import ended, in_library, library, milliseconds, via

CODE = "GR202"

_CONCATENATE = ("cat", "concat", "concatenate", "hstack", "vstack")

_ADVICE = "allocate {0} once at its final length and write each step by index (a static cache), with a mask"
_GENERATE = 'where the model has a static cache, ask for it: `generate(..., cache_implementation="static")`'
_LIBRARY = "if the library offers a static cache (allocated once, written by index), use it for {0}"


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    found = [_of_region(evidence, region, found) for region in evidence.regions if (found := growing(region.shapes))]
    explained = {line_of(finding.at) for finding in found}
    loops = (finding for finding in _of_loops(evidence) if finding.at is None or line_of(finding.at) not in explained)
    return [*found, *loops, *(_in_a_stream(evidence, stopped) for stopped in stopped_for(evidence, GROWS))]


def _of_region(evidence: CellEvidence, region: RegionEvidence, found: Sequence[Growth]) -> Finding:
    cat, main = _concatenation(evidence, region, found)
    at = cat.user or cat.inner if cat else None
    captured = [count for count in region.shapes if count.captured]
    spent, held = sum(c.capture_ms for c in captured), sum(c.graph_bytes for c in captured)
    memory = held_text(region, held)
    kept = f" and {memory}" if memory else ""
    cost = f"; {len(captured)} graphs cost {milliseconds(spent)}{kept}" if captured else ""
    others = len({growth.argument for growth in found}) - 1
    more = f" (and {others} more argument{'s' if others > 1 else ''})" if others else ""
    served = served_by_graphs(region)
    theirs = library(cat.user, cat.inner) if cat else None
    argument = Arguments(evidence, region).name(main.argument)
    target = cell_source(evidence).target(at, _CONCATENATE)
    return Finding(
        code=CODE,
        severity="hint" if served else "costly",
        message=f"dimension {main.dim} of {argument}{more} grows by {main.rate_text} of `{region.name}`, "
        f"{main.first} to {main.last}: {_how_new(region, main)}{cost}"
        f"{via(cat.user, cat.inner) if cat else ''}",
        at=at or region.at,
        region=region.name,
        evidence=(
            ("argument", main.argument),
            ("dimension", main.dim),
            ("step", main.step),
            ("sizes", (main.first, main.last)),
            ("arguments", tuple(growth.argument for growth in found)),
            ("shapes", len(region.shapes)),
            ("captured", len(captured)),
            ("capture_ms", spent if captured else None),
            ("graph_bytes", held),
            *held_evidence(region),
            ("concatenated_at", str(at) if at else None),
            *(in_library(cat.user, cat.inner) if cat else ()),
        ),
        predicted_ms_per_call=spent / region.calls if captured and region.calls and not served else None,
        advice=_LIBRARY.format(argument) if theirs else _ADVICE.format(f"`{target}`" if target else argument),
    )


def _in_a_stream(evidence: CellEvidence, stopped: Stopped) -> Finding:
    """Operators that a stream runs as written, for their sizes are new ones each time."""
    given, runs = ("are", "them") if len(stopped.operators) > 1 else ("is", "it")
    source = cell_source(evidence)
    extends = not stopped.in_library and any(name.startswith("aten::cat") for name in stopped.operators)
    name = source.target(stopped.at, _CONCATENATE) if extends else None  # else what grows was made elsewhere
    generates = source.call(stopped.at, ("generate",)) is not None
    return Finding(
        code=CODE,
        severity=stopped.severity(evidence),
        message=f"the sizes that {stopped.spoken} {given} given grow, so a stream runs {runs} as written"
        f"{stopped.cost(evidence)}{via(stopped.user, stopped.inner) if stopped.in_library else ''}"
        f"{ended(stopped.segments)}",
        at=stopped.at,
        evidence=(*stopped.counted, *stopped.in_library),
        advice=(_GENERATE if generates else _LIBRARY.format("what grows"))
        if stopped.in_library
        else _ADVICE.format(f"`{name}`" if name else "the state"),
    )


def _how_new(region: RegionEvidence, growth: Growth) -> str:
    """A second pass through the sizes brings no new shape."""
    if growth.calls == 1 and region.calls <= len(region.shapes):
        return "every call has a new shape"
    return f"{len(region.shapes)} shapes so far, {region.calls} calls in this cell"


def _concatenation(
    evidence: CellEvidence, region: RegionEvidence, found: Sequence[Growth]
) -> tuple[OpRecord | None, Growth]:
    """The `cat` that makes a growing argument, and that argument; else None and the largest one."""
    traces = (*region.traces, evidence.trace) if evidence.trace else region.traces
    ranked = sorted(found, key=lambda growth: -growth.elements)
    for growth in ranked:
        for op in chain.from_iterable(map(_cats, traces)):
            if any(growth.continued_by(output.shape) for output in op.outputs):
                return op, growth
    return None, ranked[0]


@Kept
def _cats(trace: Trace) -> tuple[OpRecord, ...]:
    return tuple(op for op in trace.ops if op.name.startswith(("aten.cat.", "aten.concat.", "aten.concatenate.")))


def _of_loops(evidence: CellEvidence) -> Iterator[Finding]:
    """Concatenations in a loop of the cell whose results grow steadily."""
    for site in op_sites(evidence, lambda op, _, region: region is None, among=_cats):
        growth = steady_growth("", list(enumerate(site.shapes)))
        if growth is None:
            continue
        name = cell_source(evidence).target(site.at, _CONCATENATE)
        sizes = f"from {growth.first} on" if site.cut else f"{growth.first} to {growth.last}"
        yield Finding(
            code=CODE,
            severity="costly",
            message=f"dimension {growth.dim} of {f'`{name}`' if name else 'a concatenation'} grows by {growth.step} "
            f"{site.how_often}, {sizes}{via(site.user, site.inner)}",
            at=site.at,
            evidence=(
                ("argument", name),
                ("dimension", growth.dim),
                ("step", growth.step),
                ("sizes", (growth.first, growth.last)),
                site.counted,
            ),
            advice=_ADVICE.format(f"`{name}`" if name else "the state"),
        )


def in_source(context: Context) -> Iterator[StaticFinding]:
    """GR202: a name is extended by concatenation at each iteration, or in a function that hands it back each time."""
    for node in context.hot.nodes:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        for target, value in _pairs(node.targets[0], node.value):
            name = ast.unparse(target)
            if context.kinds.root_call(value) not in _CONCATENATE:
                continue
            parts = value.args[0] if isinstance(value, ast.Call) and value.args else None
            extends = isinstance(parts, (ast.List, ast.Tuple)) and any(ast.unparse(part) == name for part in parts.elts)
            if extends and (context.hot.loop(node) is not None or _handed_back(context, node, name)):
                advice = "allocate `{}` once at its final length and write each step by index, with a mask"
                message = "`{}` grows by concatenation each time: every call has a new shape"
                yield context.at("GR202", node, name, message, advice)


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    lists = (ast.Tuple, ast.List)
    if isinstance(target, lists) and isinstance(value, lists) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def _handed_back(context: Context, node: ast.AST, name: str) -> bool:
    """True for an argument of the function around `node` that it returns as it is."""
    function = context.hot.function(node)
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
    items = [item for value in returned for item in (value.elts if isinstance(value, ast.Tuple) else [value])]
    return name in {arg.arg for arg in function.args.args} and name in map(ast.unparse, items)
