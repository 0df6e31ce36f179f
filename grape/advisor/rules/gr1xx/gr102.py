"""GR102 data-dependent-branch: a tensor's value decides which way the Python code goes.

Sees: `if`, `while`, `break` behind an `if`, `assert`, ternaries and `and`/`or`/`not` on a tensor of the GPU. Costs:
one wait of the CPU per decision, and a graph would freeze the way that was taken at capture. Fix: compute both sides
and select (`torch.where`), test less often, or take the decision out of the region. Wrong when: the condition never
changes during the run; then compute it once before the loop.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeGuard

from ....model import CellEvidence, Finding
from ....model.times.machine import H200, MachineCosts
from ...code.parsed import last_name
from ...code.sites import BRANCHES, Site, sync_saving_ms, sync_sites
from ...code.source import cell_source
from ...refusals import advice_at, severity_in, with_refusals
from ...static.context import Context, StaticFinding
from ...static.kinds import Kinds
from ...words import traced_calls, via, waits

CODE = "GR102"

_ADVICE = {
    "if": "compute both sides and select with `torch.where({0}, a, b)`, or take the `if` out of the region",
    "if outside": "compute both sides and select with `torch.where({0}, a, b)`, or decide only every n-th iteration",
    "if leaves": "test `{0}` only every n-th iteration, and drop what the iterations behind the last one added",
    "while": "test `{0}` only every n-th iteration, or run a fixed number of iterations with masked updates",
    "library": "compute on the device what decides, or look for an option of `{0}` that skips the check",
    "assert": "drop the assert from the hot path, or use `torch._assert_async({0})`, which does not wait",
    "ternary": "select with `torch.where({0}, a, b)`",
    "bool-op": "use `&`, `|`, `~` (or `torch.logical_and`) so that the result stays a tensor",
}
_READS = frozenset({"item", "tolist", "numpy", "float", "int"})
_WORDS = {"ternary": "conditional expression", "bool-op": "`and`/`or`/`not`"}


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    sites = sync_sites(evidence)
    source = cell_source(evidence)
    mine = (
        site
        for site in sites
        if site.kind != "dynamic"
        and site.construct in BRANCHES
        and not (site.region is None and source.every_nth(site.user))
    )
    found = [_finding(evidence, site, sites) for site in mine]
    return with_refusals(CODE, evidence, found, _ADVICE["if"].format("condition"))


def _finding(evidence: CellEvidence, site: Site, sites: tuple[Site, ...]) -> Finding:
    construct = site.construct or "if"
    test = cell_source(evidence).condition(site.inner or site.user, construct)
    known = _ways(test, site.values)
    ways = f", true {sum(known)} of {len(known)} times{_seen(site)}" if known else ""
    statement = _statement(construct, test)
    severity = severity_in(site.region, CODE)
    return Finding(
        code=CODE,
        severity=severity,
        message=f"{statement} needs a tensor's value: {waits(evidence)} {site.how_often}{site.cost(evidence)}{ways}"
        f"{via(site.user, site.inner)}{site.cuts}",
        at=site.at,
        region=site.region_name,
        evidence=(
            ("construct", construct),
            ("condition", test),
            ("syncs_per_call", site.per_call),
            site.counted,
            *site.in_library,
            ("wait_ms_per_call", site.wait_ms if evidence.cuda else None),
            ("taken", sum(known) if known else None),
            ("not_taken", len(known) - sum(known) if known else None),
        ),
        predicted_ms_per_call=sync_saving_ms(evidence, site, sites),
        advice=advice_at(site, severity, _advice(evidence, site, construct, test)),
    )


def _seen(site: Site) -> str:
    """Where the values are not those of the whole cell: which they are."""
    if site.region is not None and site.region.calls > site.traces:
        return f" in {traced_calls(site.traces)}"
    return " seen" if site.cut else ""


def _ways(test: str | None, values: Sequence[object]) -> list[bool]:
    """Which way the decision went each time, as far as the values that were read say: of ``not x`` the other way.

    Nothing where the value is only a part of the condition: a number in ``x.item() == 3``, one side of ``a and b``.
    """
    try:
        node: ast.expr = ast.parse(test or "", mode="eval").body
    except (SyntaxError, ValueError):
        return []
    negated = False
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        node, negated = node.operand, not negated
    calls = {last_name(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)}
    parts = isinstance(node, ast.BoolOp) or any(isinstance(part, (ast.BoolOp, ast.Not)) for part in ast.walk(node))
    if parts or calls & _READS or (isinstance(node, ast.Compare) and any(type(v) is not bool for v in values)):
        return []
    return [bool(value) is not negated for value in values if value is not None]


def _advice(evidence: CellEvidence, site: Site, construct: str, test: str | None) -> str:
    """An `if` that leaves its loop has no other side to compute; outside of regions there is none to move it out of."""
    kind = construct
    if test is None and site.inner is not None and site.user is not None and site.inner.file != site.user.file:
        return _ADVICE["library"].format(site.inner.function.removesuffix(".__init__"))
    if construct == "if" and cell_source(evidence).leaves(site.inner or site.user):
        kind = "if leaves"
    elif construct == "if" and site.region is None:
        kind = "if outside"
    return _ADVICE[kind].format(test or "condition")


def _statement(construct: str, test: str | None) -> str:
    if construct in _WORDS:
        return f"`{test}`" if test and construct == "bool-op" else f"a {_WORDS[construct]}".replace("a `", "`")
    return f"`{construct} {test}`" if test else f"`{construct}`"


def in_source(context: Context) -> Iterator[StaticFinding]:
    """GR102: a tensor's value decides."""
    advice = {
        "if": "compute both sides and select with `torch.where({}, a, b)`, or test only every n-th iteration",
        "while": "test `{}` only every n-th iteration, or run a fixed number of iterations with masked updates",
        "assert": "drop the assert from the hot path, or use `torch._assert_async({})`, which does not wait",
        "ternary": "select with `torch.where({}, a, b)`",
    }
    for node in context.hot.nodes:
        if context.is_seldom(node):
            continue
        kind = {ast.If: "if", ast.While: "while", ast.Assert: "assert", ast.IfExp: "ternary"}.get(type(node))
        if kind is not None and isinstance(node, (ast.If, ast.While, ast.Assert, ast.IfExp)):
            if _decides(context.kinds, node.test):
                message = (
                    f"`{'' if kind == 'ternary' else kind + ' '}{{}}` needs a tensor's value: the CPU waits for the GPU"
                )
                yield context.at("GR102", node, node.test, message, advice[kind])
        elif _is_value(node, context):
            advice_here = "use `&`, `|`, `~` so that the result stays a tensor"
            yield context.at("GR102", node, node, "`{}` needs a tensor's value: the CPU waits for the GPU", advice_here)


def _is_value(node: ast.AST, context: Context) -> TypeGuard[ast.BoolOp]:
    """True for `and`/`or` on tensors whose result is kept, not tested."""
    if not isinstance(node, ast.BoolOp) or not any(map(context.kinds.is_tensor, node.values)):
        return False
    return not any(True for _ in context.tests_above(node))


def _decides(kinds: Kinds, test: ast.expr) -> bool:
    """True where the truth of `test` is that of a tensor, or of a number read from one."""
    if isinstance(test, ast.BoolOp):
        return any(_decides(kinds, value) for value in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _decides(kinds, test.operand)
    if kinds.is_tensor(test) or kinds.root_call(test) in ("equal", "allclose"):
        return True
    reads = (node for node in ast.walk(test) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    return any(node.func.attr in ("item", "tolist") and kinds.is_tensor(node.func.value) for node in reads)  # type: ignore[attr-defined]
