"""The verdict: the one line that a person reads first. It claims what was measured and verified, nothing else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ...model import FEWEST_SAMPLES, SIGNIFICANT, CellEvidence, Finding, RegionReport, ReportData
from ..units import count, duration, one_line, percent, plural, ratio, waited, waited_pair
from .said import LOOP, Said, busy_text, calls_text, given_up, looked_at, region_name
from .unchanged import because, captured_text, new_shapes, observed_text, refused_text, why_no_change

_WORTH_A_WORD_MS = 0.5
"""Own time that is told."""

_AGAIN = 5
"""So often one operator of a line repeats, or a call; a few may stand in one line."""

_SHORT_MS = 50.0
"""Of a cell, with Grape: a ratio of less would say that a cell of a millisecond became 20 times slower."""
_COMPARED = 0.05
"""Of the operators, that ran as written to see what deferring them saves: so many change what the cell takes."""
_MOSTLY = 0.5
"""Of the cell's time: from here on it is the loader that decides how long it takes."""


def gpu_measured(evidence: CellEvidence) -> bool:
    """True where times are those of a GPU. Times of the tape, the CPU reference, claim no gain."""
    return evidence.cuda and evidence.backend != "tape"


def build_verdict(evidence: CellEvidence, regions: tuple[RegionReport, ...], findings: Sequence[Finding]) -> str:
    """One line about the cell, for example ``cell 2.9x faster (0.86 -> 0.30 s), outputs identical; Grape itself took
    0.02 s``.
    """
    stopped = f"stopped by {_error_name(evidence.error)}; " if evidence.error else ""
    data = sum(wait.host_ms for wait in evidence.loaders) / evidence.time.wall_ms if evidence.time else 0.0
    blockers = sum(finding.severity == "blocker" for finding in findings)
    left = [f"{plural(blockers, 'blocker')} left"] if blockers else []
    waits = f"; {percent(data)} of it goes to data" if _MOSTLY <= data <= 1 else ""
    return stopped + ", ".join([_body(evidence, regions, findings) + waits, *left]) + _own(evidence)


def _own(evidence: CellEvidence) -> str:
    own_ms = evidence.time.own.total_ms if evidence.time else 0.0
    return f"; Grape itself took {waited(own_ms)}" if own_ms >= _WORTH_A_WORD_MS else ""


def _body(evidence: CellEvidence, regions: tuple[RegionReport, ...], findings: Sequence[Finding]) -> str:
    main = ReportData(verdict="", evidence=evidence, regions=regions, findings=()).main_region
    change = _change(evidence, regions)
    if evidence.as_written is not None:
        return _joined(change, Said(f"left as written: {evidence.as_written}"))
    if evidence.streams:
        return _streamed(evidence, change)
    if not gpu_measured(evidence) and (main is not None or ran_torch(evidence) or evidence.torch_ran):
        return _without_gpu(evidence, main, change)
    if main is None and not ran_torch(evidence):
        why = _TOO_SMALL if evidence.torch_ran else _nothing_here(evidence)
        return "; ".join([*change, why])
    if main is None:
        return _joined(change, _without_regions(evidence))
    if main.outcome == "replayed":
        return _replayed(evidence, main, regions, findings, change)
    if main.outcome == "refused":
        return _joined(change, refused_text(evidence, main, findings))
    return _joined(change, observed_text(evidence, main, findings))


def _streamed(evidence: CellEvidence, change: list[str]) -> str:
    head = [] if gpu_measured(evidence) else [f"{_no_device(evidence)}: nothing gets faster"]
    seen = sum(stream.operators for stream in evidence.streams)
    matched = sum(stream.matched for stream in evidence.streams)
    doubted = sum(stream.doubted for stream in evidence.streams)
    if not seen:
        what = _nothing_here(evidence)
    elif matched:
        segments = sum(stream.segments for stream in evidence.streams)
        groups = f"{plural(segments, 'group')} instead of one by one"
        what = f"{count(matched)} of {plural(seen, 'operator')} launched in {groups}"
        if doubted >= _COMPARED * seen:
            what += f"; {count(doubted)} ran as written this time, to tell what that saves"
    elif doubted >= _COMPARED * seen:
        what = f"{count(doubted)} of {plural(seen, 'operator')} ran as written this time, to tell what streams save"
    elif large := sum(stream.without_room for stream in evidence.streams):
        what = f"{count(large)} of {plural(seen, 'operator')} repeat, with results larger than --memory-budget"
    elif waiting := sum(stream.waiting for stream in evidence.streams):
        repeat = f"{count(waiting)} of {plural(seen, 'operator')} repeat"
        what = f"{repeat}, too few yet to be worth a capture; later runs go on"
    elif kept := next(filter(None, (stream.kept_out for stream in evidence.streams)), None):
        what = f"{count(kept[1])} of {plural(seen, 'operator')} ran as written: {kept[0]}"
    elif any(stream.recorded for stream in evidence.streams):
        what = f"{plural(seen, 'operator')} seen and some recorded; run the cell again to have them matched"
    else:
        what = f"of {plural(seen, 'operator')} none came often enough to be recorded"
    return "; ".join([*head, *change, what] if not head else [*head, what, *change])


def _nothing_here(evidence: CellEvidence) -> str:
    if not evidence.children:
        return "no PyTorch work in this cell"
    children = "1 child process" if evidence.children == 1 else f"{count(evidence.children)} child processes"
    return f"no PyTorch work in this process; the cell started {children}, of which Grape saw nothing"


_TOO_SMALL = "its PyTorch work is too small to gain"
_NOTHING_REPEATS = "no PyTorch work in it repeats"
_REPEATS_SMALL = "what repeats in it is too small to be a CUDA graph"
_UNCHANGED = "no significant change"


def _joined(change: list[str], said: Said) -> str:
    """The times of the cell, and what became of it; that nothing changed is not said twice."""
    if not change and said.unchanged:
        return f"{_UNCHANGED}: {said.text}"
    return "; ".join([*change, said.text])


def _change(evidence: CellEvidence, regions: Sequence[RegionReport]) -> list[str]:
    """The cell now and plain; empty where the plain time is not known, or nothing may be claimed from it."""
    time = evidence.time
    if time is None or time.plain_ms is None or (time.ratio is None and not gpu_measured(evidence)):
        return []
    speedup = ReportData(verdict="", evidence=evidence, regions=tuple(regions), findings=()).speedup
    times = waited_pair(time.plain_ms, time.wall_ms)
    if time.cold_ms >= SIGNIFICANT * time.wall_ms:
        times += f", first calls {waited(time.cold_ms)} of it"
    if time.ratio is None:
        return [f"{_UNCHANGED} ({times})"]
    if time.ratio < 1 and time.wall_ms < _SHORT_MS:
        return [f"cell {duration(time.wall_ms - time.plain_ms)} slower ({times})"]
    if time.ratio < 1:
        return [f"cell {_by(1 / time.ratio)} slower ({times})"]
    return [f"cell {_by(speedup)} faster ({times})"] if speedup is not None else []


def _by(factor: float) -> str:
    """``2.9x``; ``4%`` where that would be ``1.0x``."""
    return ratio(factor) if ratio(factor) != "1.0x" else percent(factor - 1)


def _error_name(error: str) -> str:
    match = re.match(r"[^\W\d][\w.]*", error)
    return match.group() if match else "an error"


def ran_torch(evidence: CellEvidence) -> bool:
    """True where an operator was seen outside of every region, or a timeline was taken there."""
    return bool((evidence.trace and evidence.trace.ops) or (evidence.timeline and evidence.timeline.events))


def _outputs(regions: Sequence[RegionReport]) -> list[str]:
    """The words about the outputs of all replayed regions together."""
    replayed = [region.verified for region in regions if region.outcome == "replayed"]
    if not replayed:
        return []
    unknown = replayed.count(None)
    if unknown:
        return ["outputs not compared" if unknown == len(replayed) else f"outputs not compared in {unknown} of them"]
    loose = sorted({verified for verified in replayed if verified and verified != "identical"})
    if not loose:
        return ["outputs identical"]
    return [f"outputs {one_line(loose[0], 40)}" if len(loose) == 1 else "outputs within their tolerances"]


def _no_device(evidence: CellEvidence) -> str:
    return "the work ran on the CPU" if evidence.cuda else "no GPU here"


def _without_gpu(evidence: CellEvidence, main: RegionReport | None, change: list[str]) -> str:
    """Nothing gets faster; what was checked all the same."""
    head = f"{_no_device(evidence)}: nothing gets faster"
    could = sum(region.verified is not None and region.refused is None for region in evidence.regions)
    if could:
        loose = {region.verified for region in evidence.regions} - {"identical", None}
        same = "results within their tolerances" if loose else "same results"
        what = [f"checked: {plural(could, 'part')} of this cell could be a CUDA graph, {same}"]
    elif main is None:
        what = [(_REPEATS_SMALL if _repeats(evidence) else _NOTHING_REPEATS) if ran_torch(evidence) else _TOO_SMALL]
    elif main.outcome == "refused":
        what = [f"{region_name(main)} stays eager{because(evidence, main)}"]
    elif evidence.given_up is not None:
        what = ["it runs as written"]
    else:
        what = [f"observed {looked_at(evidence, main)}{new_shapes(evidence, main) or captured_text(evidence, main)}"]
    return "; ".join([head, *what, *change])


def _without_regions(evidence: CellEvidence) -> Said:
    share = evidence.timeline.gpu_busy_share if evidence.timeline else None
    why = _REPEATS_SMALL if _repeats(evidence) else "no GPU work in it repeats, so there is nothing to replay"
    return Said(busy_text(share) or why, unchanged=True)


def _repeats(evidence: CellEvidence) -> bool:
    """True where one line issued one operator, or what is too small to be a region was called, again and again."""
    if evidence.called_again >= _AGAIN:
        return True
    issued = Counter((op.name, op.user, op.inner) for op in (evidence.trace.ops if evidence.trace else ()))
    return max(issued.values(), default=0) >= _AGAIN


def _replayed(
    evidence: CellEvidence,
    main: RegionReport,
    regions: Sequence[RegionReport],
    findings: Sequence[Finding],
    change: list[str],
) -> str:
    others = sum(region.outcome == "replayed" for region in regions) - 1
    costlier = _costlier_eager(evidence, main, regions)
    if change and evidence.time is not None and evidence.time.ratio is None:
        why = why_no_change(evidence, main, findings)
        parts = [f"{change[0]}: {why}" if why else change[0]]
    else:
        parts = change or [f"{_replays(main)}; {_not_claimed(evidence, main)}"]
    parts += [f"{plural(others, 'more region')} replayed"] if others and not change else []
    parts += [f"{region_name(costlier)} stays eager"] if costlier else []
    said = ", ".join([*parts, *_outputs(regions)])
    return f"{said}{given_up(evidence)}"


def _replays(region: RegionReport) -> str:
    if region.name.startswith(LOOP):  # of a loop the first iterations are nobody's, and not counted
        return f"replayed {plural(region.replays, 'iteration')} of the {region_name(region)}"
    return f"replayed {count(region.replays)} of {calls_text(region)}"


def _not_claimed(evidence: CellEvidence, main: RegionReport) -> str:
    """Why nothing is said of the cell's time, where something was replayed."""
    time = evidence.time
    if time is None:
        return "the cell's time was not measured"
    if time.plain_ms is None:
        return f"what the plain cell takes is not known: {time.basis}"
    times = waited_pair(time.plain_ms, time.wall_ms)
    if main.verified is None:
        return f"no change claimed ({times})"
    if time.samples is not None and time.samples < FEWEST_SAMPLES:
        timed = plural(time.samples, "call")
        return f"ratio not claimed: only {timed} as written timed, {FEWEST_SAMPLES} are needed ({times})"
    return f"no change claimed ({times})"


def _costlier_eager(evidence: CellEvidence, main: RegionReport, regions: Sequence[RegionReport]) -> RegionReport | None:
    """A region beside the main one that was not replayed and takes more of the cell's time. Callers do not count."""
    parents = {region.name: region.parent for region in evidence.regions}
    callers: set[str] = set()
    caller = parents.get(main.name)
    while caller is not None and caller not in callers:
        callers.add(caller)
        caller = parents.get(caller)
    rest = [r for r in regions if r.outcome != "replayed" and r.name not in callers and _total(r) > _total(main)]
    return max(rest, key=_total, default=None)


def _total(region: RegionReport) -> float:
    return region.before_ms.median_ms * region.calls if region.before_ms else 0.0
