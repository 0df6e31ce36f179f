"""GR301 placeholder-copy: an argument is copied into its graph's placeholder at each replay.

Sees: arguments that did not lie at the address that the graph reads. Costs: bytes over the device's copy rate, plus
one launch per call. Fix: let the line that makes the tensor write into the same memory each time (`out=`, `copy_`,
in-place); let the region write state that it hands from call to call in place. Wrong when: the old value is still
needed after the next one is made: then the copy is what keeps it right.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....model import CellEvidence, CopyRecord, Finding, Position, RegionEvidence
from ....model.location import line_of
from ....model.sizes import size_text
from ....model.times.machine import H200, MachineCosts
from ...arguments import Arguments
from ...code.source import cell_source
from ...cost import copy_ms
from ...words import milliseconds

CODE = "GR301"

_ADVICE = "reuse one tensor for {0}: write the new value into it (`out=`, `.copy_()`, an in-place operator)"
_FED_BACK = "let `{1}` write {0} in place, by index or with `out=`, instead of returning a new tensor"
_SMALL = 2**16
"""Bytes per call. Fewer cost a share of one launch that a replay needs anyway."""


def check(evidence: CellEvidence, costs: MachineCosts = H200) -> Iterable[Finding]:
    found = []
    for region in evidence.regions:
        groups: dict[tuple[str, int] | None, list[CopyRecord]] = {}
        for copy in region.copies:
            if copy.bytes and copy.calls:
                groups.setdefault(line_of(copy.made_at), []).append(copy)
        found += [
            _finding(evidence, region, copies, costs)
            for copies in groups.values()
            if sum(copy.bytes for copy in copies) >= _SMALL
        ]
    return found


def _finding(evidence: CellEvidence, region: RegionEvidence, copies: list[CopyRecord], costs: MachineCosts) -> Finding:
    nbytes = sum(copy.bytes for copy in copies)
    cost = copy_ms(nbytes, costs) if evidence.cuda else None
    paths = [copy.argument for copy in copies]
    spoken = Arguments(evidence, region)
    fed_back = [path for path in paths if spoken.fed_back(path)]
    made: Position | None = copies[0].made_at or spoken.called_at
    target = cell_source(evidence).target(copies[0].made_at)
    price = f", about {milliseconds(cost)}" if cost is not None else ""
    verb = "is" if len(copies) == 1 else "are"
    return Finding(
        code=CODE,
        severity="costly",
        message=f"{spoken.listed(paths)} {verb} copied into place at each replay of `{region.name}`: "
        f"{size_text(nbytes)}{price} per call{_origin(spoken, paths, fed_back)}",
        at=made or region.at,
        region=region.name,
        evidence=(
            ("arguments", tuple(paths)),
            ("fed_back", tuple(fed_back)),
            ("bytes_per_call", nbytes),
            ("calls", max(copy.calls for copy in copies)),
            ("made_at", str(made) if made else None),
            ("not_predicted", next((copy.unpredicted for copy in copies if copy.unpredicted), None)),
            ("predicted_with", costs.source if cost is not None else None),
        ),
        predicted_ms_per_call=cost,
        advice=_advice(region, spoken, paths, fed_back, target),
    )


def _origin(spoken: Arguments, paths: list[str], fed_back: list[str]) -> str:
    if not fed_back:
        return ""
    who = "it is" if len(paths) == 1 else "they are" if len(paths) == len(fed_back) else f"{spoken.listed(fed_back)} is"
    return f"; {who} the result of the previous call"


def _advice(
    region: RegionEvidence, spoken: Arguments, paths: list[str], fed_back: list[str], target: str | None
) -> str | None:
    """The fix for the first argument that the person's code makes.

    None where a library calls the region and makes them.
    """
    if target is None and not spoken.called_here:
        return None
    made = [path for path in paths if path not in fed_back]
    if made:
        return _ADVICE.format(f"`{target}`" if target else spoken.name(made[0]))
    return _FED_BACK.format(spoken.name(fed_back[0]), region.name)
