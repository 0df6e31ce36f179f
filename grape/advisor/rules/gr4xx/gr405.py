"""GR405 unsupported: something that cannot be captured, by name.

Sees: the runtime's refusal (an operator, a stream, a second device, a hook, ...), and regions that need gradients.
Of an operator stream, the operators that run as written and take their share of the cell, with the reason. Costs: the
region stays eager; a stream ends a segment there. Fix: run inference under `torch.inference_mode()` or
`torch.no_grad()`; move what is named out of the region. Wrong when: the gradients are used; then eager is right.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ....model import CellEvidence, Finding, Refused, RegionEvidence
from ....model.stream import SHARED
from ....model.times.machine import H200, MachineCosts
from ...code.parsed import last_name
from ...code.source import cell_source
from ...cost import HINT_BELOW
from ...refusals import ancestors, callable_name, refused, with_refusals
from ...static.context import Context, StaticFinding, calls_backward, shown
from ...static.kinds import Kinds
from ...stopped import Stopped, stopped_for
from ...words import ended, via

CODE = "GR405"

_USED = (
    "its gradients are used outside of it: put forward, `backward` and the optimizer's step into one function, "
    "which can replay as a whole"
)
_IN_A_STREAM: dict[str, str | None] = {
    "random numbers": None,
    "a kernel in Python": None,
    "not of torch": None,
    "a collective": None,
    "cannot be captured": None,
    SHARED: "give it memory that nobody but torch has: a copy (`.clone()`), made once",
}
"""Why a stream runs operators as written, with the advice, where there is one."""
_GRADIENTS = frozenset({"no_grad", "inference_mode", "set_grad_enabled"})
_MOVE = "move what is named out of it, or leave it: it runs as you wrote it"


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    recording = {region.name for region in evidence.regions if _records(region)}
    # What a region records inside of one that does is the same finding.
    regions = {region.name: region for region in evidence.regions}
    outermost = tuple(
        r for r in evidence.regions if r.name not in recording or not recording & ancestors(r.name, regions)
    )
    evidence = replace(evidence, regions=outermost)
    yield from (_in_a_stream(evidence, reason, stopped) for reason, stopped in _stopped(evidence))
    yield from with_refusals(CODE, evidence, _needing_grad(evidence), _MOVE)


def _stopped(evidence: CellEvidence) -> Iterator[tuple[str, Stopped]]:
    """Findings of what streams run as written, for other reasons than rules of their own know, and what takes its time
    on a GPU.
    """
    for reason in _IN_A_STREAM if evidence.cuda else ():
        for stopped in stopped_for(evidence, reason):
            if stopped.share >= HINT_BELOW:
                yield reason, stopped


def _in_a_stream(evidence: CellEvidence, reason: str, stopped: Stopped) -> Finding:
    where = via(stopped.user, stopped.inner) if stopped.in_library else ""
    runs = "runs" if len(stopped.operators) == 1 else "run"
    return Finding(
        code=CODE,
        severity="costly" if _IN_A_STREAM[reason] else "hint",
        message=f"{stopped.spoken} {runs} as written{stopped.cost(evidence)}, for {reason}{where}"
        f"{ended(stopped.segments)}",
        at=stopped.at,
        evidence=(("reason", reason), *stopped.counted, *stopped.in_library),
        advice=None if stopped.in_library else _IN_A_STREAM[reason],
    )


def _needing_grad(evidence: CellEvidence) -> Iterator[Finding]:
    for region in refused(evidence, CODE):
        refusal = region.refused
        if refusal is None or region.outcome == "replayed" or not _for_grad(refusal, region):
            continue
        yield Finding(
            code=CODE,
            severity="blocker",
            message=f"`{region.name}` stays eager: {refusal.why}",
            at=refusal.at or region.at,
            end_line=region.end_line,
            region=region.name,
            evidence=(("needs_grad", True), ("calls", region.calls), *refusal.evidence),
            advice=_USED if _uses_gradients(evidence, region) else _how_to_do_without(region),
        )


def _how_to_do_without(region: RegionEvidence) -> str:
    if region.loop_line is not None:
        return f"if the gradients are not used, put the loop at line {region.loop_line} under `with torch.no_grad():`"
    return f"if the gradients are not used, call `{region.name}` under `torch.inference_mode()` or `torch.no_grad()`"


def _uses_gradients(evidence: CellEvidence, region: RegionEvidence) -> bool:
    """True where the region, one around it, the cell or a function around their calls computes gradients:
    ``loss.backward()``, ``torch.autograd.grad(...)``.
    """
    source = cell_source(evidence)
    around = ancestors(region.name, {known.name: known for known in evidence.regions})
    trees: list[ast.AST] = []
    for one in (known for known in evidence.regions if known.name == region.name or known.name in around):
        trees += [function for _, function in source.functions(callable_name(one))]
        here = source.parsed(one.at.file)
        if here is not None and here.tree is not None:
            trees += [
                node
                for node in ast.walk(here.tree)
                if isinstance(node, ast.FunctionDef) and node.lineno <= one.at.line <= (node.end_lineno or node.lineno)
            ]
    cell = source.parsed(source.file)
    if cell is not None and cell.tree is not None:
        trees.append(cell.tree)
    calls = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(last_name(call.func) == "backward" or ast.unparse(call.func).endswith("autograd.grad") for call in calls)


def _records(region: RegionEvidence) -> bool:
    """In a later run nothing may be left of the traces; the refusal stays."""
    refused = region.refused is not None and region.refused.reason.is_of_gradients
    return region.outcome != "replayed" and (refused or any(trace.needs_grad for trace in region.traces))


def _for_grad(refusal: Refused, region: RegionEvidence) -> bool:
    """A refusal that names no line of its own inside the region, and says that gradients stand in the way."""
    return refusal.reason.is_of_gradients and refusal.at in (None, region.at)


def in_source(context: Context) -> Iterator[StaticFinding]:
    """GR405: a model is called in a loop where nothing needs its gradients, and they are recorded."""
    kinds = context.kinds
    for node in context.hot.nodes:
        loop = context.hot.loop(node)
        if (
            not isinstance(node, ast.Call)
            or loop is None
            or kinds.of(node.func) != "module"
            or not kinds.is_tensor(node)
        ):
            continue
        if calls_backward(loop) or _without_gradients(kinds, node) or not _evaluates(kinds.tree, node.func):
            continue
        advice = f"call `{shown(node.func)}` under `torch.inference_mode()` or `torch.no_grad()`"
        yield context.at("GR405", node, node.func, "`{}` records gradients that this loop does not use", advice)


def _evaluates(tree: ast.Module, model: ast.expr) -> bool:
    """The source says that it evaluates (``model.eval()``), and does not freeze models (``requires_grad_(False)``)."""
    name = ast.unparse(model)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if any(
        last_name(call.func) == "requires_grad_" and call.args and ast.unparse(call.args[0]) == "False"
        for call in calls
    ):
        return False
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "eval"
        and (ast.unparse(call.func.value) == name or not isinstance(call.func.value, ast.Name))
        for call in calls
    )


def _without_gradients(kinds: Kinds, node: ast.AST) -> bool:
    for _, parent in kinds.above(node):
        given: Iterable[ast.expr] = ()
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            given = [item.context_expr for item in parent.items]
        elif isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = parent.decorator_list
        if any(last_name(one.func if isinstance(one, ast.Call) else one) in _GRADIENTS for one in given):
            return True
    return any(kinds.root_call(n.value) == "set_grad_enabled" for n in ast.walk(kinds.tree) if isinstance(n, ast.Expr))
