"""GR101 host-sync: the CPU waits for a value or a tensor of the GPU, and no branch needs it.

Sees: `.item()`, `.tolist()`, `.cpu()`, `.numpy()`, printing or formatting a tensor, `synchronize()` in a region or in
a loop of the cell. Costs: the wait, and the GPU's idle time until the launches behind it arrive; a captured graph
cannot hold it at all; an operator stream ends a segment there. Fix: keep the value on the device, read it once after
the loop. Wrong when: the value is needed at that moment (a progress line), or the read is already behind work that
takes longer than the wait.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from ....model import CellEvidence, Finding, Position
from ....model.location import line_of
from ....model.times.machine import H200, MachineCosts
from ...code.parsed import Parsed, last_name
from ...code.sites import BRANCHES, Site, sync_saving_ms, sync_sites
from ...code.source import cell_source
from ...cost import sync_gap_ms
from ...optimizers import advice_for_step
from ...refusals import advice_at, severity_in, with_refusals
from ...static.context import Context, StaticFinding
from ...static.kinds import Kinds
from ...static.sources import Placed, reads_in_sources
from ...words import operator_name, via

CODE = "GR101"

_SHORT = 150
_LINES_PER_MS = 0.1
"""So many lines of source are looked through while the person waits: always, and for each millisecond of the cell."""

_READS = ("item", "tolist", "cpu", "numpy", "synchronize", "to", "print", "float", "int", "bool", "format", "str")
_PRINTS = frozenset({"print", "display", "write", "info", "debug", "warning", "set_postfix", "set_description"})
_TO_HOST = frozenset({"item", "tolist", "numpy", "cpu"})
_LONGEST_OWNER = 40
_READ_LATER = "read it once after the loop"
_ADVICE = {
    "print": "print after the loop, or every n-th iteration; keep the values in a list of detached tensors until then",
    "transfer-out": "keep the tensor on the GPU; copy once after the loop",
    "host-read": f"keep the value as a tensor, and {_READ_LATER}",
    "index": "read all that are needed at once, before the loop (`.tolist()`), or index once with a tensor of them all",
    "seldom": "it is read seldom already: read it outside of what repeats, so that the rest can be captured",
}


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    sites = sync_sites(evidence)
    source = cell_source(evidence)
    mine = (
        site
        for site in sites
        if site.kind != "dynamic"
        and site.construct not in BRANCHES
        and not source.pads_edges(site.user)  # behind the wait of the list itself
        and not (site.region is None and (source.only_reads(site.user) or source.every_nth(site.user)))
    )
    inner: dict[int, Position | None] = {}
    found = []
    for site in mine:
        found.append(_finding(evidence, site, sites))
        inner[id(found[-1])] = site.inner
    lines = {line_of(site.at) for site in sites}
    found += [_unseen(evidence, placed) for placed in _below_the_tracer(evidence, lines)]
    for finding in with_refusals(CODE, evidence, found, _ADVICE["host-read"]):
        known = dict(finding.evidence)
        streamed = finding.region is None and bool(evidence.streams)
        theirs = "construct" not in known or "in_library" in known or (streamed and known["construct"] is None)
        place = inner.get(id(finding))
        advice = advice_for_step(source, finding.at, inner=place, streamed=streamed) if theirs else None
        yield finding if advice is None else replace(finding, advice=advice)


def _finding(evidence: CellEvidence, site: Site, sites: tuple[Site, ...]) -> Finding:
    written = cell_source(evidence).call(site.inner or site.user, _READS)
    subject = (
        f"`{written}`" if written else "printing a tensor" if site.construct == "print" else _operator(evidence, site)
    )
    saving = sync_saving_ms(evidence, site, sites)
    gap = sync_gap_ms(site.region.before) if site.region else None
    verb = "makes the CPU wait for the GPU" if evidence.cuda else "would make the CPU wait for a GPU"
    severity = severity_in(site.region, CODE)
    return Finding(
        code=CODE,
        severity=severity,
        message=f"{subject} {verb} {site.how_often}{site.cost(evidence)}{via(site.user, site.inner)}{site.cuts}",
        at=site.at,
        region=site.region_name,
        evidence=(
            ("syncs_per_call", site.per_call),
            site.counted,
            *site.in_library,
            ("wait_ms_per_call", site.wait_ms if evidence.cuda else None),
            ("gap_ms_per_call", gap if evidence.cuda else None),
            ("construct", site.construct),
        ),
        predicted_ms_per_call=saving,
        advice=advice_at(site, severity, _way_out(evidence, site, written)),
    )


def _way_out(evidence: CellEvidence, site: Site, written: str | None) -> str:
    if cell_source(evidence).every_nth(site.user):
        return _ADVICE["seldom"]
    way = "print" if site.construct == "print" else "index" if _index(evidence, site) and not written else site.kind
    return _kept(written) if way == "host-read" and written else _ADVICE[way]


def _kept(written: str) -> str:
    """The advice for a value that is read by the call `written`."""
    with contextlib.suppress(SyntaxError, ValueError):
        call = ast.parse(written, mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _TO_HOST:
            owner = ast.unparse(call.func.value)
            if len(owner) <= _LONGEST_OWNER:
                return f"keep the value as a tensor (`{owner.removesuffix('.detach()')}.detach()`), and {_READ_LATER}"
    return _ADVICE["host-read"]


def _operator(evidence: CellEvidence, site: Site) -> str:
    """An index that is a tensor of one element is read like a number."""
    if site.op is None:
        return "a synchronization"
    index = _index(evidence, site)
    return f"the index of `{index}`" if index else operator_name(site.op)


def _index(evidence: CellEvidence, site: Site) -> str | None:
    reads = site.kind == "host-read" and not site.library
    return cell_source(evidence).subscript(site.user) if reads else None


def _below_the_tracer(evidence: CellEvidence, known: set[tuple[str, int] | None]) -> Iterator[Placed]:
    """Reads that no operator shows, in loops that ran: torch prints with every mode switched off, and a CPU tensor
    gives its values away without an operator.
    """
    kinds = {"print"} if evidence.cuda else {"print", "tolist", "numpy", "cpu"}
    lines = [line for _, trace in evidence.all_traces() for op in trace.ops if (line := line_of(op.user)) is not None]
    refused = {line_of(region.refused.at) for region in evidence.regions if region.refused is not None}
    ran = {file for file, _ in lines}
    others = (source for source in evidence.sources if source[0] != evidence.file)
    own = tuple((file, text) for file, text in others if file in ran or file.startswith("In["))
    if not any(kinds & reads_by_syntax(text) for file, text in (*own, (evidence.file, evidence.source)) if file in ran):
        return  # the look at every cell of the notebook, for what their names are, would find nothing
    most_lines = _SHORT + evidence.wall_ms * _LINES_PER_MS
    for placed in reads_in_sources((*own, (evidence.file, evidence.source)), most_lines, in_source):
        finding = placed.finding
        here = (placed.file, finding.line)
        if finding.code != CODE or finding.kind not in kinds or here in known or here in refused:
            continue
        if cell_source(evidence).every_nth(Position(file=placed.file, line=finding.line, function=finding.function)):
            continue
        first, last = finding.around
        if any(file == placed.file and first <= line <= last for file, line in lines):
            yield placed


def _unseen(evidence: CellEvidence, placed: Placed) -> Finding:
    finding = placed.finding
    printing = finding.kind == "print"
    subject = f"printing `{finding.subject}`" if printing else f"`{finding.subject}`"
    verb = "makes the CPU wait for the GPU" if evidence.cuda else "would make the CPU wait for a GPU"
    return Finding(
        code=CODE,
        severity="costly",
        message=f"{subject} {verb} at each iteration",
        at=Position(file=placed.file, line=finding.line, function=finding.function),
        end_line=finding.end_line,
        evidence=(("seen_in", "source"), ("construct", finding.kind)),
        advice=_ADVICE["print" if printing else "transfer-out"],
    )


@lru_cache(maxsize=64)
def reads_by_syntax(source: str) -> frozenset[str]:
    """The kinds of reads that a source could have at all, whatever its names stand for."""
    tree, found = Parsed(source).tree, set()
    for node in ast.walk(tree) if tree is not None else ():
        name = last_name(node.func) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.JoinedStr) or name in _PRINTS:
            found.add("print")
        elif name in _TO_HOST:
            found.add(name)
    return frozenset(found)


def in_source(context: Context) -> Iterator[StaticFinding]:
    """GR101: a value or a tensor goes to the CPU, or is printed."""
    kinds = context.kinds
    for node in context.hot.nodes:
        if context.is_seldom(node):
            continue
        if isinstance(node, ast.JoinedStr) and not _is_printed(context, node):
            shown = next(_formatted(kinds, node), None)
            if shown is not None:
                yield _printed(context, node, shown)
        if not isinstance(node, ast.Call):
            continue
        func = node.func
        if context.synchronizes(node):
            yield context.at(
                "GR101", node, node, "`{}` makes the CPU wait for the GPU", "synchronize once after the loop"
            )
        elif isinstance(func, ast.Attribute) and func.attr in _TO_HOST and not node.args:
            owner = kinds.of(func.value)
            read = func.attr == "item" or (func.attr == "tolist" and kinds.reads_tell)
            if owner in ("tensor", "mask") or (read and owner is None):
                if context.is_tested(node):
                    continue
                advice = _ADVICE["transfer-out"] if func.attr in ("cpu", "numpy") else _kept(ast.unparse(node))
                yield context.at("GR101", node, node, "`{}` makes the CPU wait for the GPU", advice, func.attr)
        elif isinstance(func, ast.Name) and func.id in ("float", "int") and node.args and kinds.is_tensor(node.args[0]):
            advice = _ADVICE["host-read"]
            yield context.at("GR101", node, node, "`{}` makes the CPU wait for the GPU", advice)
        elif last_name(func) in _PRINTS:
            shown = next(_shown(kinds, node), None)
            if shown is not None:
                yield _printed(context, node, shown)


def _printed(context: Context, node: ast.expr, shown: ast.expr) -> StaticFinding:
    advice = "print after the loop, or every n-th iteration; keep detached tensors in a list until then"
    return context.at("GR101", node, shown, "printing `{}` makes the CPU wait for the GPU", advice, "print")


def _is_printed(context: Context, node: ast.AST) -> bool:
    parent = context.kinds.parents.get(node)
    return isinstance(parent, ast.Call) and last_name(parent.func) in _PRINTS


def _shown(kinds: Kinds, call: ast.Call) -> Iterator[ast.expr]:
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        if kinds.is_tensor(argument):
            yield argument
        elif isinstance(argument, ast.JoinedStr):
            yield from _formatted(kinds, argument)


def _formatted(kinds: Kinds, text: ast.JoinedStr) -> Iterator[ast.expr]:
    for part in text.values:
        if isinstance(part, ast.FormattedValue) and kinds.is_tensor(part.value):
            yield part.value
