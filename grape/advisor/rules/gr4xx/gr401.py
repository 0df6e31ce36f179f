"""GR401 host-constant: a Python number or a CPU tensor is sent to the device inside the region.

Sees: `torch.tensor(0.0, device="cuda")`, a CPU tensor used in the region, numbers turned into tensors by a library.
Costs: one blocking copy each, at every eager call; a capture cannot hold an unpinned copy unless the value is known
to be constant. Fix: make the tensor once outside, or use operators that take the number itself. Wrong when: the value
changes from call to call; then it is an input: pass it in.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial

from ....model import CellEvidence, Finding, OpRecord, RegionEvidence, Trace
from ....model.sizes import size_text
from ....model.times.machine import H200, MachineCosts
from ...code.sites import Site, op_sites
from ...code.source import cell_source
from ...cost import transfer_ms
from ...refusals import advice_at, severity_in
from ...static.context import Context, StaticFinding
from ...transfers import Origin, incoming, origin, sources
from ...words import milliseconds, via

CODE = "GR401"

_CALLS = ("tensor", "as_tensor", "scalar_tensor", "from_numpy", "full", "to", "cuda")
_ADVICE: dict[Origin, str] = {
    "constant": "make {0} once outside and reuse it, or pass the Python number itself to the operator",
    "computed": "compute {0} on the GPU (`device=x.device`), or once outside",
    "outside": "move {0} to the GPU once outside (`.to(device)`, or `register_buffer` in a module)",
}
_WHAT: dict[Origin, str] = {
    "constant": "a Python value",
    "computed": "a tensor computed on the CPU",
    "outside": "a CPU tensor from outside",
}


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    kinds: tuple[Origin, ...] = ("constant", "computed", "outside")
    return [
        _finding(evidence, site, kind, costs)
        for kind in kinds
        for site in op_sites(evidence, partial(_is_of, kind), among=incoming)
        if _bytes(site) and not _is_filled(evidence, site) and not _stays(evidence, site, kind)
    ]


def _is_of(kind: Origin, op: OpRecord, trace: Trace, region: RegionEvidence | None) -> bool:
    """In the cell's own loops only values made from Python: tensors that are sent there are GR302."""
    return origin(op, trace) == kind and (region is not None or kind == "constant")


def _finding(evidence: CellEvidence, site: Site, kind: Origin, costs: MachineCosts) -> Finding:
    assert site.op is not None
    nbytes = _bytes(site)
    kept = kind == "constant" and site.region is not None and site.region.outcome == "replayed"
    timeline = site.region.before if site.region else evidence.timeline
    cost = transfer_ms(timeline, nbytes, site.per_call, costs) if evidence.cuda else None
    written = cell_source(evidence).call(site.inner or site.user, _CALLS)
    price = f", {milliseconds(cost)}" if cost is not None else ""
    subject = f"`{written}`" if written else _WHAT[kind]
    verb = "is sent" if evidence.cuda else "would be sent"
    severity = severity_in(site.region, CODE)
    advice = _ADVICE[kind].format(f"`{written}`" if written else "the tensor")
    return Finding(
        code=CODE,
        severity="hint" if kept else severity,
        message=f"{subject} {verb} from the CPU to the GPU {site.how_often}: {size_text(nbytes)}{price}"
        + via(site.user, site.inner)
        + ("; replays reuse it" if kept else ""),
        at=site.at,
        region=site.region_name,
        evidence=(
            ("operator", site.op.name),
            ("origin", kind),
            ("per_call", site.per_call),
            site.counted,
            ("bytes", nbytes),
            *site.in_library,
        ),
        predicted_ms_per_call=None if kept else cost,
        advice=None if kept else advice_at(site, severity, advice),
    )


def _is_filled(evidence: CellEvidence, site: Site) -> bool:
    """True on the tape for ``mask[0] = False``: the CPU makes a tensor of the number first, a GPU does not."""
    source = cell_source(evidence)
    return not evidence.cuda and source.sets_item(site.user) and source.call(site.user, _CALLS) is None


def _stays(evidence: CellEvidence, site: Site, kind: Origin) -> bool:
    """Without a GPU, of a value in the cell's own code whose line names no device: beside a GPU it would stay where it
    is made, as that of ``torch.LongTensor(indices)`` does.
    """
    if evidence.cuda or kind != "constant" or site.region is not None or site.library:
        return False
    return not cell_source(evidence).names_device(site.user)


def _bytes(site: Site) -> int:
    """Of one transfer; an empty tensor sends nothing."""
    return (sum(view.nbytes for view in sources(site.op)) if site.op else 0) or site.nbytes


def in_source(context: Context) -> Iterator[StaticFinding]:
    """GR401: a tensor is made from Python values on the device."""
    for node in context.hot.nodes:
        if not isinstance(node, ast.Call) or context.kinds.root_call(node) not in ("tensor", "as_tensor"):
            continue
        above = context.kinds.parents.get(node)
        sent = isinstance(above, ast.Attribute) and above.attr in ("to", "cuda")
        if sent or any(keyword.arg == "device" for keyword in node.keywords):
            advice = "make `{}` once outside and reuse it, or pass the Python number itself to the operator"
            yield context.at("GR401", node, node, "`{}` is made on the CPU and sent to the device each time", advice)
