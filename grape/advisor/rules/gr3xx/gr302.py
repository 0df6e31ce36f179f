"""GR302 host-input: a tensor comes from the CPU's memory at each call.

Sees: an argument in CPU memory, copied to the device at each call of a region or in a loop of the cell. Costs: the
transfer; from unpinned memory the CPU is held too, until the bytes have left. Fix: put the data on the device before
the loop, or pin it and copy with `non_blocking=True`. Wrong when: the data does not fit on the device and is already
pinned.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ....model import CellEvidence, Finding, OpRecord, RegionEvidence, TensorView, Trace
from ....model.sizes import size_text
from ....model.stream import ON_THE_CPU
from ....model.times.machine import H200, MachineCosts
from ...code.sites import Site, op_sites
from ...code.source import cell_source
from ...cost import transfer_ms
from ...refusals import with_refusals
from ...static.context import Context, StaticFinding
from ...static.state import root_name
from ...stopped import Stopped, stopped_for
from ...transfers import incoming, origin, sources
from ...words import ended, milliseconds, via

CODE = "GR302"

_UNPINNED = "move {0} to the GPU once before the loop, or pin it and copy with `non_blocking=True`"
_CALLS = ("to", "cuda", "copy_")


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    found = [_of_site(evidence, site, costs) for site in op_sites(evidence, _comes_in, among=incoming)]
    found += [_in_a_stream(evidence, stopped) for stopped in stopped_for(evidence, ON_THE_CPU)]
    return with_refusals(CODE, evidence, found, _UNPINNED.format("the argument"))


def _comes_in(op: OpRecord, trace: Trace, region: RegionEvidence | None) -> bool:
    """An argument of a region; in the cell's own code any tensor that was not made from Python values there.

    A copy that was asked not to block runs beside what the CPU does next.
    """
    if dict(op.kwargs).get("non_blocking") == ("bool", True):
        return False
    known = origin(op, trace)
    return known == "argument" if region is not None else known not in (None, "constant")


def _in_a_stream(evidence: CellEvidence, stopped: Stopped) -> Finding:
    """An operator that takes a CPU tensor beside those of the device; its time is that of the copy, and its own."""
    where = via(stopped.user, stopped.inner) if stopped.in_library else ""
    return Finding(
        code=CODE,
        severity=stopped.severity(evidence),
        message=f"{stopped.spoken} takes a tensor from the CPU's memory at each execution{stopped.cost(evidence)}"
        f"{where}{ended(stopped.segments)}",
        at=stopped.at,
        evidence=(*stopped.counted, *stopped.in_library),
        advice=None if stopped.in_library else _UNPINNED.format("it"),
    )


def _of_site(evidence: CellEvidence, site: Site, costs: MachineCosts) -> Finding:
    assert site.op is not None
    moved: TensorView = sources(site.op)[0]
    timeline = site.region.before if site.region else evidence.timeline
    cost = transfer_ms(timeline, moved.nbytes, site.per_call, costs) if evidence.cuda else None
    written = cell_source(evidence).call(site.inner or site.user, _CALLS)
    price = f", {milliseconds(cost)}" if cost is not None else ""
    return Finding(
        code=CODE,
        severity="costly",
        message=f"{f'`{written}`' if written else 'a CPU tensor'} sends {size_text(moved.nbytes)} to the GPU "
        f"{site.how_often}{price}{via(site.user, site.inner)}",
        at=site.at,
        region=site.region_name,
        evidence=(
            ("bytes", moved.nbytes),
            ("shape", moved.shape),
            ("per_call", site.per_call),
            site.counted,
        ),
        predicted_ms_per_call=cost,
        advice=_UNPINNED.format("it"),
    )


def in_source(context: Context) -> Iterator[StaticFinding]:
    """GR302: what a loop iterates over is sent to the device, and the CPU waits for it."""
    for node in context.hot.nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in ("to", "cuda") or not context.kinds.is_tensor(node.func.value) or _is_dtype(node):
            continue
        if any(keyword.arg == "non_blocking" for keyword in node.keywords):
            continue
        if _is_given_anew(context, node, node.func.value):
            advice = (
                "pin the data (`pin_memory=True`) and copy with `non_blocking=True`, or move it once before the loop"
            )
            message = "`{}` sends data to the device each time, and waits for it"
            yield context.at("GR302", node, node, message, advice)


def _is_given_anew(context: Context, node: ast.AST, sent: ast.expr) -> bool:
    """True for what the loop binds or picks at each iteration, and for arguments of a function called in a loop."""
    loop, function = context.hot.loop(node), context.hot.function(node)
    if loop is not None and {part.id for part in ast.walk(sent) if isinstance(part, ast.Name)} & set(_targets(loop)):
        return True
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or not context.hot.is_called_often(function):
        return False
    return root_name(sent) in {arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)}


def _is_dtype(call: ast.Call) -> bool:
    """``x.to(torch.float16)`` and ``x.to(other)`` of what is no device move nothing."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    named = [ast.unparse(argument) for argument in given]
    return any(text.startswith("torch.") and not text.startswith("torch.device") for text in named) and len(named) == 1


def _targets(loop: ast.AST) -> Iterator[str]:
    """Names that a loop binds at each iteration."""
    found: list[ast.expr] = []
    if isinstance(loop, (ast.For, ast.AsyncFor)):
        found = [loop.target]
    elif isinstance(loop, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
        found = [generator.target for generator in loop.generators]
    return (node.id for target in found for node in ast.walk(target) if isinstance(node, ast.Name))
