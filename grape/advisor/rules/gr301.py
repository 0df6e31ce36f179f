"""GR301 placeholder-copy: an argument is copied into its graph's placeholder at each replay.

Sees: arguments that did not lie at the address that the graph reads. Costs: bytes over the device's copy rate, plus
one launch per call. Fix: let the line that makes the tensor write into the same memory each time (`out=`, `copy_`,
in-place). Wrong when: the old value is still needed after the next one is made: then the copy is what keeps it right.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...model import CellEvidence, CopyRecord, Finding, Position, RegionEvidence
from ..cost import H200, MachineCosts, copy_ms
from ..refusals import with_refusals
from ..source import cell_source
from ..words import amount, listed, milliseconds

CODE = "GR301"

_ADVICE = "reuse one tensor for {0}: write the new value into it (`out=`, `.copy_()`, an in-place operator)"


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    found = []
    for region in evidence.regions:
        groups: dict[tuple[str, int] | None, list[CopyRecord]] = {}
        for copy in region.copies:
            if not copy.host and copy.bytes and copy.calls:
                line = (copy.made_at.file, copy.made_at.line) if copy.made_at else None
                groups.setdefault(line, []).append(copy)
        found += [_finding(evidence, region, copies, costs) for copies in groups.values()]
    return with_refusals(CODE, evidence, found, _ADVICE.format("the argument"))


def _finding(evidence: CellEvidence, region: RegionEvidence, copies: list[CopyRecord], costs: MachineCosts) -> Finding:
    nbytes = sum(copy.bytes for copy in copies)
    timed = [copy.ms_per_call for copy in copies if copy.ms_per_call is not None]
    measured = sum(timed) if len(timed) == len(copies) else None
    cost = measured if measured is not None else copy_ms(nbytes, costs) if evidence.cuda else None
    names = [copy.argument for copy in copies]
    made: Position | None = copies[0].made_at
    target = cell_source(evidence).target(made)
    about = "" if measured is not None else "about "
    price = f", {about}{milliseconds(cost)}" if cost is not None and evidence.cuda else ""
    verb = "is" if len(copies) == 1 else "are"
    return Finding(
        code=CODE,
        severity="costly",
        message=f"{listed(names)} {verb} copied into place at each replay of `{region.name}`: "
        f"{amount(nbytes)}{price} per call",
        at=made or region.at,
        region=region.name,
        evidence=(
            ("arguments", tuple(names)),
            ("bytes_per_call", nbytes),
            ("calls", max(copy.calls for copy in copies)),
            ("ms_per_call", measured),
            ("made_at", str(made) if made else None),
            ("predicted_with", None if measured is not None else costs.source),
        ),
        predicted_ms_per_call=cost,
        advice=_ADVICE.format(f"`{target or names[0]}`"),
    )
