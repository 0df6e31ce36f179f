"""From a refusal of the runtime to findings; and which findings stand in a capture's way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from ..model import CellEvidence, Finding, Refused, RegionEvidence, Severity
from ..model.location import line_of
from .arguments import Arguments
from .code.sites import Site

_STOPS_ANY_CAPTURE = frozenset({"GR101", "GR102", "GR103"})


def severity_in(region: RegionEvidence | None, code: str) -> Severity:
    """ "blocker" where `code` keeps `region` from being captured; else "costly", which the engine may lower.

    A host read in a region that was not refused follows from the region's inputs, and a replay checks it again. In a
    region that was refused, every host read stands in the way, whatever it was refused for.
    """
    if region is None or region.outcome != "refused":
        return "costly"
    if code in _STOPS_ANY_CAPTURE or (region.refused is not None and region.refused.code == code):
        return "blocker"
    return "costly"


def advice_at(site: Site, severity: Severity, advice: str) -> str | None:
    """`advice`, where the code is the person's own to change.

    In a library's code there is no fix for what merely costs; what blocks deserves a look at the library's options.
    """
    if site.library is None:
        return advice
    if severity != "blocker":
        return None
    return f"this is code of `{site.library}`: look for an option of it that avoids this"


def callable_name(region: RegionEvidence) -> str:
    """The name that its definition has: of ``Net.step`` or ``make.<locals>.step`` "step", of ``Net (net)`` "Net"."""
    return region.name.split(" ")[0].rpartition(".")[2]


def ancestors(name: str, regions: Mapping[str, RegionEvidence]) -> set[str]:
    """The names of the regions around the one called `name`."""
    seen: set[str] = set()
    region = regions.get(name)
    while region is not None and region.parent is not None and region.parent not in seen:
        seen.add(region.parent)
        region = regions.get(region.parent)
    return seen - {name}


def served_by_graphs(region: RegionEvidence) -> bool:
    """True where every call of this cell was a replay: what its captures cost was paid in an earlier one."""
    return 0 < region.calls <= region.replays


def refused(evidence: CellEvidence, code: str) -> Iterator[RegionEvidence]:
    """The regions that were refused with `code`."""
    return (region for region in evidence.regions if region.refused is not None and region.refused.code == code)


def refusal_of(evidence: CellEvidence, finding: Finding) -> tuple[RegionEvidence, Refused] | None:
    """The region that a finding is about, and its refusal; None where it was not refused with the finding's code."""
    for region in refused(evidence, finding.code):
        if region.name == finding.region and region.refused is not None:
            return region, region.refused
    return None


def with_refusals(code: str, evidence: CellEvidence, found: Iterable[Finding], advice: str) -> Iterator[Finding]:
    """`found`, and a finding for each refusal with `code` that `found` does not already explain. `advice`: where the
    reason of the refusal has none.

    A refusal is explained by a finding in the same region at the same line, or anywhere in it where it names no line.
    """
    known = list(found)
    yield from known
    for region in refused(evidence, code):
        refusal = region.refused
        assert refusal is not None
        here = line_of(refusal.at)
        if any(f.region == region.name and here in (None, line_of(f.at)) for f in known):
            continue
        yield Finding(
            code=code,
            severity=refusal.reason.severity,
            message=f"`{region.name}` stays eager: {_named(evidence, region, refusal.why)}",
            at=refusal.at or region.at,
            region=region.name,
            evidence=(("refused", refusal.reason.name), *refusal.evidence),
            advice=refusal.reason.advice or advice,
        )


def _named(evidence: CellEvidence, region: RegionEvidence, why: str) -> str:
    """The runtime names an argument by its path from the call; the person has a name for it."""
    return re.sub(r"`((?:args|result)\[[^`]*)`", lambda path: Arguments(evidence, region).name(path[1]), why)
