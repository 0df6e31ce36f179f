"""The report of a cell with the ranks of the process group beside each other."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...advisor import advise
from ...failures import surviving
from ...model import CellEvidence, Finding, MachineCosts
from ...model.times.ranks import Late, RanksEvidence, RankTimes, compared
from ...render import Report, build_report
from ...streams import Arrivals, Stream
from ...tracing import forget_group, group_of_run
from ..past.told import sources
from ..streamed.stream_evidence import findings_beside, shown_at
from .children import children
from .exchange import exchange
from .launch import RankMessage, kept

_NOTHING_MET = Arrivals(meetings=(), at_ns=(), met=0)
_GONE = "the process group was destroyed before the cell ended"
_PARTS = "groups of some of the ranks exchange tensors as well"
_NO_CLOCK = "not all of their arrivals were measured"
_OTHERS = "they issued different collectives"


def arrivals_of(stream: Stream | None) -> Arrivals | None:
    """This rank's arrivals at the collectives of the run, where a stream served it in a process group; nothing is
    pending any more. Raises nothing: what is wrong with the device is the person's, who meets it in the next cell.
    """
    if stream is None or group_of_run() is None:
        return None
    with contextlib.suppress(Exception):
        return stream.arrivals()
    return None


def beside_ranks(report: Report, source: str, met: Arrivals | None = None, shown: Callable[[str], str] = str) -> Report:
    """The same where there is no process group. `met`: this rank's arrivals at collectives; `shown` turns the file name
    of code into the name to show. Raises nothing.
    """
    group = group_of_run()
    if kept.keep is not None:
        rank, size, parts = (group.rank, group.size, group.has_parts) if group else (None, None, False)
        kept.keep(RankMessage(rank=rank, size=size, parts=parts, said=_told(rank or 0, report.evidence, met), met=met))
        forget_group()
        return report
    if group is None or group.size == 1:
        return _with_children(report)
    with surviving("it told the other ranks of the cell, or heard of theirs"):
        gone = group.store() is None
        mine = _told(group.rank, report.evidence, met)
        heard = exchange.tell(group, source, json.dumps(mine), partial(_overlaps, mine["began_s"]))
        ranks = RanksEvidence(rank=group.rank, size=group.size)
        if group.rank == 0:
            said = [mine, *(json.loads(text) for _, text in sorted(heard.items()))]
            ranks = _compared(said, met or _NOTHING_MET, group.size, parts=group.has_parts)
            ranks = replace(ranks, apart=_GONE) if gone else ranks
        report = _with(report, ranks, shown)
    forget_group()
    return report


def beside_children(
    report: Report, heard: Mapping[int, RankMessage], size: int, shown: Callable[[str], str] = str
) -> Report:
    """The report of the first of `heard`, by rank, with all of these beside each other: processes that the cell
    started, of which there were `size`.
    """
    with surviving("it put the processes of a cell beside each other"):
        first, *_ = messages = [heard[rank] for rank in sorted(heard)]
        said = [{**heard[rank].said, "rank": rank} for rank in sorted(heard)]
        parts = any(one.parts for one in messages)
        ranks = _compared(said, first.met or _NOTHING_MET, first.size or size, parts=parts)
        report = _with(report, ranks, shown)
    return report


def _with_children(report: Report) -> Report:
    """Where nothing of torch ran here, but in children, perhaps."""
    forked = children()
    if not forked or report.evidence.torch_ran:
        return report
    return build_report(replace(report.evidence, children=forked), report.findings, report.make_fixes)


def _told(rank: int, evidence: CellEvidence, met: Arrivals | None) -> dict[str, Any]:
    """What this rank says of itself, as JSON has it."""
    collectives, met = None if met is None else met.met, met or _NOTHING_MET
    wall_ms, now_s = evidence.time.wall_ms if evidence.time else evidence.wall_ms, time.time()
    return {
        "rank": rank,
        "began_s": now_s - wall_ms / 1e3,
        "ended_s": now_s,
        "wall_ms": wall_ms,
        "operators": sum(stream.operators for stream in evidence.streams),
        "matched": sum(stream.matched for stream in evidence.streams),
        "error": evidence.error is not None,
        "collectives": collectives,
        "names": hashlib.blake2b("\n".join(one.operator for one in met.meetings).encode(), digest_size=8).hexdigest(),
        "at_us": [at_ns // 1000 for at_ns in met.at_ns],
    }


def _overlaps(began_s: float, message: str) -> bool:
    """True where the run that the message is about went on, for the most part, after `began_s`: runs of one cell begin
    and end together, and one of another time is an earlier one.
    """
    other = json.loads(message)
    return bool((other["began_s"] + other["ended_s"]) / 2 >= began_s)


def _compared(said: Sequence[dict[str, Any]], met: Arrivals, size: int, *, parts: bool) -> RanksEvidence:
    """Of rank 0: `said` by it and by others, in their order."""
    apart = _apart(said, size, parts=parts)
    waits: Sequence[float | None] = [None] * len(said)
    late: tuple[Late, ...] = ()
    window_ms = None
    if apart is None and met.meetings:
        at_ns = [[at_us * 1000 for at_us in one["at_us"]] for one in said]
        waits, late = compared(met.meetings, at_ns)
        cut = met.met > len(met.meetings)
        window_ms = (met.at_ns[-1] - met.at_ns[0]) / 1e6 if cut else float(said[0]["wall_ms"])
    return RanksEvidence(
        rank=0,
        size=size,
        shown=tuple(_times(one, waits_ms) for one, waits_ms in zip(said, waits, strict=True)),
        late=late,
        window_ms=window_ms,
        apart=apart,
    )


def _apart(said: Sequence[dict[str, Any]], size: int, *, parts: bool) -> str | None:
    if len(said) < size or not any(one["collectives"] for one in said):
        return None if len(said) == size else "not all of them were heard"
    if parts:
        return _PARTS
    if len({(one["collectives"], one["names"]) for one in said}) > 1:
        return _OTHERS
    return None if all(all(one["at_us"]) for one in said) else _NO_CLOCK


def _times(one: dict[str, Any], waits_ms: float | None) -> RankTimes:
    plain = {name: one[name] for name in ("rank", "wall_ms", "operators", "matched", "collectives", "error")}
    return RankTimes(**plain, waits_ms=waits_ms)


def _with(report: Report, ranks: RanksEvidence, shown: Callable[[str], str]) -> Report:
    ranks = replace(ranks, late=tuple(replace(one, user=shown_at(one.user, shown)) for one in ranks.late))
    evidence = replace(report.evidence, ranks=ranks)
    if ranks.late and not evidence.sources:
        evidence = replace(evidence, sources=sources(shown))
    alone = replace(evidence, regions=(), trace=None, timeline=None, streams=(), loaders=())
    more = advise(alone, MachineCosts())
    fixes = _Beside(report.make_fixes, more) if report.make_fixes is not None else None
    return build_report(evidence, findings_beside(report.findings, more), fixes)


@dataclass(frozen=True)
class _Beside:
    """The findings with their fixes, and those about ranks, which have none."""

    make: Callable[[], tuple[Finding, ...]]
    more: tuple[Finding, ...]

    def __call__(self) -> tuple[Finding, ...]:
        return findings_beside(self.make(), self.more)

    @property
    def made(self) -> tuple[Finding, ...] | None:
        made: tuple[Finding, ...] | None = getattr(self.make, "made", None)
        return None if made is None else findings_beside(made, self.more)
