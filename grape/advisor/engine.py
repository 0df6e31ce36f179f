"""From a cell's evidence to ordered findings."""

from __future__ import annotations

import re
from dataclasses import replace

from ..model import CellEvidence, Finding, RegionEvidence
from ..model.location import line_of
from ..model.times.machine import H200, MachineCosts
from .cost import HINT_BELOW, call_ms
from .prediction import held_ms, saving_ms
from .refusals import ancestors
from .rules import RULES

_RANK = {"blocker": 0, "costly": 1, "hint": 2}
_ORDINAL = re.compile(r" #\d+`")
"""Behind the name of a region that is not the first of its name."""
_COUNTED = re.compile(r"\d[\d,.]*")
_NAMED = 3
"""Of the regions that share a finding."""


def advise(evidence: CellEvidence, costs: MachineCosts = H200) -> tuple[Finding, ...]:
    """Every finding about the cell, what matters most first.

    Blockers come first, those of the region that holds most time before others; then costly findings and hints by the
    time that they cost in the whole cell. Of equal ones those about the person's own lines come before those about
    library code; else they stay in the order of the rules. Predicted gains are milliseconds
    per call (per execution of the line outside of regions), and None on a cell that did not run on a CUDA device.
    """
    regions = {region.name: region for region in evidence.regions}
    found = [finding for rule in RULES for finding in rule.check(evidence, costs)]
    if not evidence.cuda:
        found = [replace(finding, predicted_ms_per_call=None) for finding in found]
    merged = _within_families([_eased(finding, regions) for finding in _merge(found)], regions)
    graded = [_graded(_of_a_split_loop(finding, regions), evidence, regions) for finding in merged]
    unlocked = [_unlocked(finding, graded, evidence, regions, costs) for finding in graded]
    return tuple(_of_copies(sorted(unlocked, key=lambda finding: _order(finding, regions, costs))))


def _merge(found: list[Finding]) -> list[Finding]:
    """One finding per cause: same code, same line, same region. Gains add up, the worst severity stays."""
    kept: dict[object, list[Finding]] = {}
    for finding in found:
        kept.setdefault((finding.code, line_of(finding.at), finding.region), []).append(finding)
    return [group[0] if len(group) == 1 else _joined(group) for group in kept.values()]


def _joined(group: list[Finding]) -> Finding:
    gains = [finding.predicted_ms_per_call for finding in group if finding.predicted_ms_per_call is not None]
    first = max(group, key=lambda finding: finding.predicted_ms_per_call or 0.0)
    return replace(
        first,
        severity=min((finding.severity for finding in group), key=_RANK.__getitem__),
        message=f"{first.message}; and {len(group) - 1} more on this line",
        evidence=(*first.evidence, ("count", len(group))),
        predicted_ms_per_call=sum(gains) if gains else None,
    )


def _of_copies(found: list[Finding]) -> list[Finding]:
    """One finding for all that reach one line, members of an ensemble or modules that share a helper: what is said of
    ``Net``, ``Net #2``, ``Other`` differs at most in the name and in what was counted. The first stays. Advice that
    names ``Net`` is for its copies alone.
    """
    kept: dict[object, list[Finding]] = {}
    for finding in found:
        cause = finding.code, finding.severity, line_of(finding.at)
        own: object = finding.message
        if finding.region is not None:
            advised = f"`{finding.region}`" in (finding.advice or "")
            name = _ORDINAL.sub("`", f"`{finding.region}`") if advised else ""
            own = name, _sentence(finding.message, finding.region)
        kept.setdefault((cause, own), []).append(finding)
    return [group[0] if len(group) == 1 else _all_of(group) for group in kept.values()]


def _sentence(message: str, region: str) -> str:
    """The message without the name of its region, without the ordinals of others, and without numbers but those in
    code.
    """
    parts = _ORDINAL.sub("`", message.replace(f"`{region}`", "``").replace("once per", "1 times per")).split("`")
    return "`".join(code if at % 2 else _COUNTED.sub("0", code) for at, code in enumerate(parts))


def _all_of(group: list[Finding]) -> Finding:
    gains = [finding.predicted_ms_per_call for finding in group if finding.predicted_ms_per_call is not None]
    first = group[0]
    names = list(dict.fromkeys(_ORDINAL.sub("`", f"`{finding.region}`") for finding in group))
    message = _ORDINAL.sub("`", first.message)
    alike: tuple[tuple[str, object], ...] = ()
    if len(names) > 1:
        at = "" if names[0] in message else f"in {names[0]}, "
        message = f"{message}; {at}and alike in {_listed(names[1:])}"
        alike = (("alike_in", tuple(str(finding.region) for finding in group[1:])),)
    else:
        message = f"{message}; and {len(group) - 1} more like it"
    return replace(
        first,
        message=message,
        evidence=(*first.evidence, ("regions", len(group)), *alike),
        predicted_ms_per_call=sum(gains) if gains else None,
        advice=None if first.advice is None else _ORDINAL.sub("`", first.advice),
    )


def _listed(names: list[str]) -> str:
    shown = names if len(names) <= _NAMED else [*names[: _NAMED - 1], f"{len(names) - _NAMED + 1} more"]
    return " and ".join([*([", ".join(shown[:-1])] if shown[1:] else []), shown[-1]])


def _eased(finding: Finding, regions: dict[str, RegionEvidence]) -> Finding:
    """The finding, lowered: what stops a function whose loop replays blocks no more than what surrounds the loop's
    graphs.
    """
    outer = regions.get(finding.region) if finding.region else None
    if finding.severity != "blocker" or outer is None or outer.loop_line is not None or outer.end_line is None:
        return finding
    lines = range(outer.at.line, outer.end_line + 1)
    served = any(
        inner.replays and inner.loop_line in lines and inner.at.file == outer.at.file for inner in regions.values()
    )
    return replace(finding, severity="costly") if served else finding


def _within_families(found: list[Finding], regions: dict[str, RegionEvidence]) -> list[Finding]:
    """A line inside a region is also inside the regions around it: reported once, where it weighs most.

    Of equally severe findings the one about the innermost region stays; of two parts of one loop the one about the
    longer. Where a refused region is run eagerly, its operators are also recorded outside of regions: the finding about
    the region stays.
    """
    causes: dict[object, list[Finding]] = {}
    for finding in found:
        causes.setdefault(_cause(finding), []).append(finding)
    return [
        finding for finding in found if not any(_covers(other, finding, regions) for other in causes[_cause(finding)])
    ]


def _of_a_split_loop(finding: Finding, regions: dict[str, RegionEvidence]) -> Finding:
    """A line of a loop that stays outside of the loop's graph blocks nothing where the rest of the loop replays."""
    part = regions.get(finding.region) if finding.region else None
    if finding.severity != "blocker" or part is None or part.loop_line is None:
        return finding
    place = part.loop_line, part.at.file
    if not any(
        rest.replays and (rest.loop_line, rest.at.file) == place for rest in regions.values() if rest is not part
    ):
        return finding
    return replace(finding, severity="costly", message=f"{finding.message}; the rest of the loop replays")


def _covers(other: Finding, finding: Finding, regions: dict[str, RegionEvidence]) -> bool:
    """True where `other` says the same of a region inside or around, and more severely or more closely."""
    if other is finding or other.region is None:
        return False
    if finding.region is None:
        return True
    gain = _RANK[finding.severity] - _RANK[other.severity]
    part, of = regions.get(other.region), regions.get(finding.region)
    if part is not None and of is not None and part is not of and _same_loop(part, of):
        return gain > 0 or (gain == 0 and (part.at.line, part.name) < (of.at.line, of.name))
    if gain >= 0 and finding.at == other.at and _holds(part, finding) and not _holds(of, finding):
        return True  # a function, and who calls it
    inside = finding.region in ancestors(other.region, regions)
    return (inside and gain >= 0) or (gain > 0 and other.region in ancestors(finding.region, regions))


def _holds(region: RegionEvidence | None, finding: Finding) -> bool:
    """True where the finding's line is one of the region's own."""
    if region is None or region.end_line is None or finding.at is None or finding.at.file != region.at.file:
        return False
    return region.at.line <= finding.at.line <= region.end_line


def _same_loop(part: RegionEvidence, other: RegionEvidence) -> bool:
    """True for parts of one loop: where it was split again, a line belongs to a part of each split."""
    return part.loop_line is not None and (part.loop_line, part.at.file) == (other.loop_line, other.at.file)


def _cause(finding: Finding) -> object:
    """The cause of a finding: a place in a library, where it is one, however it was reached; else its line."""
    place = dict(finding.evidence).get("in_library")
    return (finding.code, place or line_of(finding.at) if finding.at else None)


def _graded(finding: Finding, evidence: CellEvidence, regions: dict[str, RegionEvidence]) -> Finding:
    """A costly finding that takes less than 1% of the call (outside of regions: of the cell) is a hint."""
    gain = finding.predicted_ms_per_call
    if finding.severity != "costly" or gain is None:
        return finding
    region = regions.get(finding.region) if finding.region else None
    whole = call_ms(region) if region else evidence.wall_ms
    spent = gain if region else gain * _executions(finding)
    return replace(finding, severity="hint") if whole and spent < HINT_BELOW * whole else finding


def _unlocked(
    finding: Finding,
    found: list[Finding],
    evidence: CellEvidence,
    regions: dict[str, RegionEvidence],
    costs: MachineCosts,
) -> Finding:
    """The only blocker of a region gains what the graph would gain; one of several gains only its own cost."""
    region = regions.get(finding.region) if finding.region else None
    if finding.severity != "blocker" or region is None or not evidence.cuda:
        return finding
    blockers = sum(1 for other in found if other.severity == "blocker" and other.region == finding.region)
    saving = saving_ms(region, costs)
    if saving is None:
        return finding
    noted = (*finding.evidence, ("graph_saving_ms_per_call", saving), ("blockers_in_region", blockers))
    gain = max(saving, finding.predicted_ms_per_call or 0.0) if blockers == 1 else finding.predicted_ms_per_call
    return replace(finding, evidence=noted, predicted_ms_per_call=gain)


def _order(finding: Finding, regions: dict[str, RegionEvidence], costs: MachineCosts) -> tuple[float, ...]:
    region = regions.get(finding.region) if finding.region else None
    calls = region.calls if region else _executions(finding)
    gain = (finding.predicted_ms_per_call or 0.0) * calls
    held = held_ms(region, costs) if region and finding.severity == "blocker" else 0.0
    return (_RANK[finding.severity], -held, -gain, "in_library" in dict(finding.evidence))


def _executions(finding: Finding) -> int:
    evidence = dict(finding.evidence)
    return int(evidence.get("executions", evidence.get("executions_at_least", 1)))
