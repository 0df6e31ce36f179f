"""GR201 shape-dynamism: a region was called with several argument shapes.

Sees: the histogram of argument shapes, without arguments that GR202 explains. Costs: one capture, and the graph's
memory, per shape. Fix: pad or bucket to a few sizes; what an object keeps and its calls give another shape (a mean
that starts as [n] and becomes [1, n]), make with the last one. Wrong when: there are two or three shapes with many
calls each (a last smaller batch): then every shape keeps its graph, and padding would only add work.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

from ....model import CellEvidence, Finding, RegionEvidence
from ....model.times.machine import H200, MachineCosts
from ...arguments import Arguments
from ...cost import capture_ms
from ...growth import growing
from ...refusals import served_by_graphs
from ...static.context import Context, StaticFinding, shown
from ...static.hot import is_short
from ...stores import held_evidence, held_text
from ...words import milliseconds, shape_text

CODE = "GR201"

_ADVICE = "pad or bucket {0} to a few sizes, so that calls share graphs"
_KEPT = "make {0} with the shape that the calls leave there, so that all calls share a graph"
_STARTED = "make {0} a tensor before the loop (`torch.zeros(())` for 0), so that all iterations share a graph"
_ALWAYS = "pass a tensor as {0} always or never, so that calls share graphs"
_SHOWN = 5
_MADE = frozenset({"zeros", "ones", "full", "empty", "rand", "randn", "arange", "randint"})
_FEWEST = 2
_FEW = 3
"""Calls in which nothing can be told of a region that was only looked at: a loop around it goes on without it."""
_PASS = 4
"""Calls with one shape before another one comes, from which on that one is the rest of a pass over the data."""


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    found = (_finding(evidence, region, costs) for region in evidence.regions)
    return (f for f in found if f is not None)


def _finding(evidence: CellEvidence, region: RegionEvidence, costs: MachineCosts) -> Finding | None:
    counted = min(region.calls, sum(count.calls for count in region.shapes))
    if region.outcome == "observed" and region.calls <= _FEW and not any(count.captured for count in region.shapes):
        return None
    calls = f"{counted} calls" if counted == region.calls else f"the {counted} of {region.calls} calls looked at"
    explained = {growth.argument for growth in growing(region.shapes)}
    spoken = Arguments(evidence, region)
    changing = [name for name in _varying(region) if name not in explained]
    given = [name for name in changing if not spoken.of_self(name)]
    varying = given or changing
    served = served_by_graphs(region)
    histogram: Counter[str] = Counter()
    for count in region.shapes:
        shown = [f"{name} {shape_text(shape)}" for name, shape in count.shapes if name in varying]
        histogram[", ".join(shown[:2]) + (", ..." if len(shown) > 2 else "")] += count.calls
    if not varying or (explained and _only_the_start_differs(region, varying)) or _only_the_last_differs(region):
        return None
    distinct = len({tuple((n, s) for n, s in count.shapes if n in varying) for count in region.shapes})
    names, sometimes = spoken.listed(varying), _only_sometimes(region, varying)
    what = f"and without a tensor as {names}" if sometimes else f"{distinct} shapes of {names}"
    advice = _ADVICE if given else _KEPT
    if sometimes:
        advice = _ALWAYS if region.loop_line is None else _STARTED
    captured = [count for count in region.shapes if count.captured]
    spent, held = sum(c.capture_ms for c in captured), sum(c.graph_bytes for c in captured)
    each = spent / len(captured) if captured else capture_ms(region.before, costs)
    total = spent if len(captured) == len(region.shapes) else each * len(region.shapes) if each is not None else None
    return Finding(
        code=CODE,
        severity="hint" if served else "costly",
        message=f"`{region.name}` was called with {what} in {calls}"
        + _price(
            captured=len(captured),
            shapes=len(region.shapes),
            more=len(region.shapes) > distinct,
            total=total,
            held=held_text(region, held),
        ),
        at=region.at,
        end_line=region.end_line,
        region=region.name,
        evidence=(
            ("distinct", distinct),
            ("calls", region.calls),
            ("arguments", tuple(varying)),
            ("histogram", tuple(histogram.most_common(_SHOWN))),
            ("captured", len(captured)),
            ("capture_ms", spent if captured else None),
            ("capture_all_ms", total),
            ("graph_bytes", held),
            *held_evidence(region),
        ),
        predicted_ms_per_call=(spent - max(c.capture_ms for c in captured)) / region.calls
        if captured and region.calls and not served
        else None,
        advice=advice.format(names),
    )


def _price(*, captured: int, shapes: int, more: bool, total: float | None, held: str) -> str:
    """`more`: arguments that another finding is about differ as well."""
    if total is None:
        return ""
    every = f"; with those that grow there are {shapes}" if more else ""
    if captured == shapes:
        return f"{every}; capturing all took {milliseconds(total)}" + (f" and holds {held}" if held else "")
    of_them = f"{captured} of them" if more else f"{captured} of {shapes}"
    return f"{every}; {of_them} are captured, capturing all would take about {milliseconds(total)}"


def _varying(region: RegionEvidence) -> list[str]:
    """Arguments that had more than one shape, or that were there only sometimes."""
    shapes: dict[str, set[tuple[int, ...]]] = {}
    present: Counter[str] = Counter()
    for count in region.shapes:
        for name, shape in count.shapes:
            shapes.setdefault(name, set()).add(shape)
            present[name] += 1
    changed = [name for name, seen in shapes.items() if len(seen) > 1]
    return changed or [name for name in shapes if present[name] < len(region.shapes)]


def _only_sometimes(region: RegionEvidence, varying: list[str]) -> bool:
    """True where the arguments are tensors of one shape, or none, as a sum is that begins as a number."""
    seen = [{name: shape for name, shape in count.shapes if name in varying} for count in region.shapes]
    return all(len({shapes[name] for shapes in seen if name in shapes}) == 1 for name in varying)


def _only_the_start_differs(region: RegionEvidence, varying: list[str]) -> bool:
    """True where the arguments differ only between a prompt (fewest calls) and the steps that follow it."""
    kinds = Counter(tuple((n, s) for n, s in count.shapes if n in varying) for count in region.shapes)
    return len(kinds) <= 2 and min(kinds.values()) == 1


def _only_the_last_differs(region: RegionEvidence) -> bool:
    """True for a loader whose last batch is smaller: two shapes, the second once for each pass over the data."""
    if len(region.shapes) != 2:
        return False
    first, last = sorted(region.shapes, key=lambda count: count.order)
    return first.calls >= _PASS * last.calls and last.order >= _PASS


def in_source(context: Context) -> Iterator[StaticFinding]:
    """GR201: a model is called with a tensor that is as long as the number of the loop says, and the numbers repeat."""
    for node in context.model_calls():
        for loop in _loops_around(context, node):
            if not isinstance(loop.target, ast.Name) or not _repeats(context, loop):
                continue
            cut = next((part for part in node.args if _is_as_long_as(context, part, loop.target.id, loop)), None)
            if cut is not None:
                message = (
                    f"`{shown(node.func)}` is called with `{{}}`, whose lengths come again: a graph serves one each"
                )
                advice = "pad or bucket `{}` to a few sizes, so that calls share graphs"
                yield context.at("GR201", node, cut, message, advice)
                break


def _loops_around(context: Context, node: ast.AST) -> Iterator[ast.For]:
    """The `for` loops around it in the same function, innermost first."""
    loop = context.hot.loop(node)
    while loop is not None:
        if isinstance(loop, ast.For):
            yield loop
        loop = context.hot.loop(loop)


def _repeats(context: Context, loop: ast.For) -> bool:
    """Several lengths, each of them more than once: the list is written twice, or a loop around goes over it again."""
    lengths = loop.iter
    if isinstance(lengths, ast.BinOp) and isinstance(lengths.op, ast.Mult):
        factors = (lengths.left, lengths.right)
        again = any(isinstance(one, ast.Constant) and isinstance(one.value, int) and one.value > 1 for one in factors)
        return again and any(map(_are_several, factors))
    if isinstance(lengths, (ast.List, ast.Tuple)):
        values = [one.value for one in lengths.elts if isinstance(one, ast.Constant) and type(one.value) is int]
        if _FEWEST <= len(set(values)) < len(values):
            return True
    return _are_several(lengths) and context.hot.loop(loop) is not None


def _are_several(lengths: ast.expr) -> bool:
    """A range or a list of different numbers, perhaps in a list, a tuple or sorted."""
    if isinstance(lengths, (ast.List, ast.Tuple)):
        values = [one.value for one in lengths.elts if isinstance(one, ast.Constant) and type(one.value) is int]
        return len(values) == len(lengths.elts) and len(set(values)) >= _FEWEST
    if not isinstance(lengths, ast.Call) or not isinstance(lengths.func, ast.Name):
        return False
    if lengths.func.id in ("list", "tuple", "sorted", "reversed") and len(lengths.args) == 1:
        return _are_several(lengths.args[0])
    return lengths.func.id == "range" and not is_short(lengths)


def _is_as_long_as(context: Context, given: ast.expr, number: str, loop: ast.For) -> bool:
    """``x[:, :n]``, ``torch.randn(n, 8)``, and a name that the loop gives to one of them."""
    if isinstance(given, ast.Name):
        made = [
            node.value
            for node in ast.walk(loop)
            if isinstance(node, ast.Assign) and any(ast.unparse(target) == given.id for target in node.targets)
        ]
        return len(made) == 1 and not isinstance(made[0], ast.Name) and _is_as_long_as(context, made[0], number, loop)
    if isinstance(given, ast.Subscript) and context.kinds.is_tensor(given.value):
        parts = given.slice.elts if isinstance(given.slice, ast.Tuple) else [given.slice]
        return any(isinstance(part, ast.Slice) and _ends_at(part, number) for part in parts)
    if isinstance(given, ast.Call) and context.kinds.root_call(given) in _MADE:
        sizes = [one for part in given.args for one in (part.elts if isinstance(part, ast.Tuple) else [part])]
        return any(_names(size, number) for size in sizes)
    return False


def _ends_at(part: ast.Slice, number: str) -> bool:
    """A slice whose length is another one with each number: one of its ends moves, and not both."""
    ends = [end for end in (part.lower, part.upper) if end is not None and _names(end, number)]
    return len(ends) == 1


def _names(node: ast.expr, number: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == number for part in ast.walk(node))
