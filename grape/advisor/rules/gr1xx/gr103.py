"""GR103 data-dependent-shape: an operator's output shape depends on values, so that the CPU has to wait for it.

Sees: `nonzero`, boolean-mask indexing, `masked_select`, `unique`, `repeat_interleave` with a tensor, ... Costs: one
wait per execution, and no graph can hold it: shapes are frozen at capture; an operator stream ends a segment there.
Fix: a result of fixed size (mask with `torch.where`, `torch.nonzero_static`). Wrong when: the result really is small
and the dense form would compute much more.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ....model import CellEvidence, Finding
from ....model.times.machine import H200, MachineCosts
from ...code.parsed import last_name
from ...code.sites import Site, sync_saving_ms, sync_sites
from ...code.source import cell_source
from ...refusals import advice_at, severity_in, with_refusals
from ...static.context import Context, StaticFinding
from ...words import operator_name, shape_text, via, waits

CODE = "GR103"

_ADVICE = {
    "nonzero": "use `torch.nonzero_static(x, size=n)`, or keep the mask and select with `torch.where`",
    "index": "keep the full tensor and select with `torch.where(mask, x, 0)`",
    "index_put": "write with `torch.where(mask, value, x)` or `x.masked_fill_(mask, value)`",
    "masked_select": "keep the full tensor and select with `torch.where(mask, x, 0)`",
    "unique": "compute `unique` once before the loop, or sort and work with the sorted values",
    "repeat_interleave": "pass `output_size=n`, or use an integer repeat count",
}
_PADDED = "the list is padded, so that what takes it replays; make it seldom, with a radius that leaves room for steps"
_OTHER = "use a form whose result has a fixed size, or take the operator out of the region"
_DYNAMIC = frozenset({"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"})
_CALLS = (
    "nonzero",
    "masked_select",
    "unique",
    "unique_consecutive",
    "repeat_interleave",
    "bincount",
    "argwhere",
    "where",
)


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    sites = sync_sites(evidence)
    found = [_finding(evidence, site, sites) for site in sites if site.kind == "dynamic"]
    source = cell_source(evidence)
    for finding in with_refusals(CODE, evidence, found, _OTHER):
        yield replace(finding, advice=_PADDED) if source.pads_edges(finding.at) else finding


def _finding(evidence: CellEvidence, site: Site, sites: tuple[Site, ...]) -> Finding:
    assert site.op is not None
    source, spot = cell_source(evidence), site.inner or site.user
    written = source.subscript(spot) if ".index" in site.op.name else source.call(spot, _CALLS)
    sizes = tuple(dict.fromkeys(site.shapes))
    seen = f", shapes {', '.join(shape_text(s) for s in sizes[:3])}" if len(sizes) > 1 else ""
    subject = f"`{written}`" if written else operator_name(site.op)
    severity = severity_in(site.region, CODE)
    return Finding(
        code=CODE,
        severity=severity,
        message=f"the output shape of {subject} depends on data: {waits(evidence)} {site.how_often}"
        f"{site.cost(evidence)}{seen}{via(site.user, site.inner)}{site.cuts}",
        at=site.at,
        region=site.region_name,
        evidence=(
            ("operator", site.op.name),
            ("syncs_per_call", site.per_call),
            site.counted,
            *site.in_library,
            ("wait_ms_per_call", site.wait_ms if evidence.cuda else None),
            ("output_shapes", tuple(shape_text(size) for size in sizes[:5])),
        ),
        predicted_ms_per_call=sync_saving_ms(evidence, site, sites),
        advice=advice_at(site, severity, _advice(site.op.name)),
    )


def _advice(name: str) -> str:
    base = name.split(".")[1].strip("_") if "." in name else name
    for key in sorted(_ADVICE, key=len, reverse=True):
        if base.startswith(key):
            return _ADVICE[key]
    return _OTHER


def in_source(context: Context) -> Iterator[StaticFinding]:
    """GR103: the shape of a result depends on values."""
    kinds = context.kinds
    message = "the output shape of `{}` depends on data: the CPU waits for the GPU"
    for node in context.hot.nodes:
        if isinstance(node, ast.Call):
            method = isinstance(node.func, ast.Attribute) and kinds.is_tensor(node.func.value)
            name = last_name(node.func) if method else kinds.root_call(node)
            if name in _DYNAMIC or (name == "where" and len(node.args) == (0 if method else 1)):
                yield context.at(
                    "GR103", node, node, message, "use a form whose result has a fixed size (a mask, `nonzero_static`)"
                )
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and kinds.is_tensor(node.value):
            index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if any(kinds.of(part) == "mask" for part in index):
                yield context.at(
                    "GR103", node, node, message, "keep the full tensor and select with `torch.where(mask, x, 0)`"
                )
