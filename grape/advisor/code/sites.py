"""Where in the person's code operators ran, gathered over the traced calls: what most rules start from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ...model import DECISION, CellEvidence, HostRead, OpRecord, Position, RegionEvidence, Stop, Trace
from ...model.kept import Kept
from ..cost import idle_ms, sync_gap_ms
from ..stopped import read_kind, record_of, stays_on_the_cpu, waits_in_streams
from ..words import ended, library, times
from .source import cell_source

__all__ = ["BRANCHES", "Site", "forget", "op_sites", "sync_saving_ms", "sync_sites"]

BRANCHES = frozenset({"if", "while", "assert", "ternary", "bool-op"})
_SYNCS = frozenset({"host-read", "transfer-out", "dynamic"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One line that ran operators of one name, over all traced calls of a region (or in the cell outside of regions).

    `executions` counts them over `traces` calls, of which not all was recorded where it is `cut`; `wait_ns` is the
    CPU's waiting over all executions. `op` is the first of the operators, None for a wait without one
    (`torch.cuda.synchronize()`).
    """

    region: RegionEvidence | None
    user: Position | None
    inner: Position | None
    construct: str | None
    op: OpRecord | None
    traces: int
    executions: int = 0
    wait_ns: int = 0
    values: tuple[object, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    nbytes: int = 0
    cut: bool = False
    segments: int = 0
    """Of an operator stream, that were issued there because the CPU waits."""

    @property
    def at(self) -> Position | None:
        return self.user or self.inner

    @property
    def library(self) -> str | None:
        """The package in whose code this happens, None in the person's own."""
        return library(self.user, self.inner)

    @property
    def in_library(self) -> tuple[tuple[str, str], ...]:
        """For a finding's evidence: the place in a library's code, nothing in the person's own."""
        return (("in_library", str(self.inner)),) if self.library and self.inner else ()

    @property
    def per_call(self) -> float:
        """Executions per call of the region; 1 outside of regions, where each execution is counted by itself."""
        return self.executions / self.traces if self.region is not None else 1.0

    @property
    def how_often(self) -> str:
        """Per call of the region; outside of regions the number of executions, where it is known."""
        if self.region is not None:
            return times(self.per_call)
        return "at each execution" if self.cut else f"at each of {self.executions} executions"

    @property
    def cuts(self) -> str:
        """For a message: what it takes from an operator stream beside the wait; empty where that is nothing."""
        return ended(self.segments)

    @property
    def counted(self) -> tuple[str, int]:
        """For a finding's evidence: how many executions there were, or were seen."""
        return ("executions_at_least" if self.cut and self.region is None else "executions", self.executions)

    @property
    def wait_ms(self) -> float:
        """The CPU's waiting per call of the region, or per execution outside of regions."""
        return self.wait_ns / 1e6 / max(1, self.traces if self.region is not None else self.executions)

    @property
    def kind(self) -> str:
        return self.op.kind if self.op else "host-read"

    @property
    def where(self) -> tuple[str | None, Position | None]:
        return (self.region.name if self.region else None, self.at)


def op_sites(
    evidence: CellEvidence,
    wanted: Callable[[OpRecord, Trace, RegionEvidence | None], bool],
    *,
    among: Callable[[Trace], Iterable[OpRecord]],
) -> tuple[Site, ...]:
    """Sites of the operators that `wanted` picks (its region is None outside of regions), in order of appearance.

    `among` gives those of a trace that come into question; it should be a `Kept`.
    """
    gathered: dict[object, _Gathered] = {}
    for region, trace in _traces(evidence):
        for op in among(trace):
            if wanted(op, trace, region) and not stays_on_the_cpu(evidence, op.inner):
                _gather(gathered, region, trace, op, None)
    return _hot(evidence, gathered)


def sync_sites(evidence: CellEvidence) -> tuple[Site, ...]:
    """Sites at which the CPU waited for the device: values read, tensors copied out, shapes that depend on data. Those
    that operator streams met come last.
    """
    global _last
    last = _last
    if last is not None and last[0] is evidence:
        return last[1]
    gathered: dict[object, _Gathered] = {}
    for region, trace in _traces(evidence):
        reads = {read.ordinal: read for read in trace.host_reads}
        for op in _WAITS.of(trace):
            if stays_on_the_cpu(evidence, op.inner):
                reads.pop(op.ordinal, None)
            else:
                _gather(gathered, region, trace, op, reads.pop(op.ordinal, None))
        for read in reads.values():
            if read.construct != DECISION:  # a graph has none of them, and rewritten code has its finding behind it
                _gather(gathered, region, trace, None, read)
    streamed = (_of_a_stream(evidence, stop) for stop in waits_in_streams(evidence))
    found = _hot(evidence, gathered) + _repeated(evidence, streamed)
    _last = evidence, found
    return found


_last: tuple[CellEvidence, tuple[Site, ...]] | None = None
"""The last answer of `sync_sites`: several rules ask for the same."""

_WAITS = Kept[Trace, tuple[OpRecord, ...]](lambda trace: tuple(op for op in trace.ops if op.kind in _SYNCS))


def forget() -> None:
    """Keep nothing of the evidence that was judged last."""
    global _last
    _last = None


def sync_saving_ms(evidence: CellEvidence, site: Site, sites: tuple[Site, ...]) -> float | None:
    """Milliseconds per call that removing one site's waits saves.

    The wait itself and the device's idle time after it, but no more than the device idles at all: a wait that overlaps
    device work is no loss. None without a CUDA device.
    """
    if not evidence.cuda:
        return None
    if site.region is None:
        return site.wait_ms
    gap, idle = sync_gap_ms(site.region.before), idle_ms(site.region.before)
    if gap is None or idle is None:
        return site.wait_ms
    siblings = sum(s.executions for s in sites if s.region is site.region)
    return min(idle, site.wait_ms + gap * site.executions / siblings)


def _of_a_stream(evidence: CellEvidence, stop: Stop) -> Site:
    """A stream counts what comes as it was recorded, not the first executions."""
    mine = stop.inner is None or stop.inner == stop.user
    return Site(
        region=None,
        user=stop.user,
        inner=stop.inner,
        construct=cell_source(evidence).asks(stop.user) if mine else None,
        op=record_of(stop, read_kind(stop) or "host-read"),
        traces=1,
        executions=stop.times,
        wait_ns=stop.total_ns,
        cut=True,
        segments=stop.segments,
    )


def _traces(evidence: CellEvidence) -> Iterator[tuple[RegionEvidence | None, Trace]]:
    for region in evidence.regions:
        for trace in region.traces:
            yield region, trace
    if evidence.trace is not None:
        yield None, evidence.trace


@dataclass(slots=True)
class _Gathered:
    """A site while its executions are counted."""

    region: RegionEvidence | None
    user: Position | None
    inner: Position | None
    construct: str | None
    op: OpRecord | None
    cut: bool
    executions: int = 0
    wait_ns: int = 0
    values: list[object] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    nbytes: int = 0

    def site(self) -> Site:
        return Site(
            region=self.region,
            user=self.user,
            inner=self.inner,
            construct=self.construct,
            op=self.op,
            traces=len(self.region.traces) if self.region else 1,
            executions=self.executions,
            wait_ns=self.wait_ns,
            values=tuple(self.values),
            shapes=tuple(self.shapes),
            nbytes=self.nbytes,
            cut=self.cut,
        )


def _gather(
    sites: dict[object, _Gathered],
    region: RegionEvidence | None,
    trace: Trace,
    op: OpRecord | None,
    read: HostRead | None,
) -> None:
    user = op.user if op else None
    user = user or (read.position if read else None)
    inner = op.inner if op else None
    construct = read.construct if read else None
    key = (id(region), _line(user), _line(inner), op.name if op else None, construct)
    site = sites.get(key)
    if site is None:
        site = sites[key] = _Gathered(region, user, inner, construct, op, trace.cut)
    site.executions += 1
    site.wait_ns += read.wait_ns if read else op.host_ns if op else 0
    if read is not None:
        site.values.append(read.value)
    if op is not None and op.outputs:
        site.shapes.append(op.outputs[0].shape)
        site.nbytes = max(site.nbytes, op.outputs[0].nbytes)


def _line(at: Position | None) -> tuple[str, int] | None:
    return (at.file, at.line) if at else None


def _hot(evidence: CellEvidence, gathered: dict[object, _Gathered]) -> tuple[Site, ...]:
    """All sites of regions; of the rest of the cell only lines that ran repeatedly, in a loop or in a function."""
    return _repeated(evidence, (one.site() for one in gathered.values()))


def _repeated(evidence: CellEvidence, sites: Iterable[Site]) -> tuple[Site, ...]:
    source = cell_source(evidence)
    return tuple(site for site in sites if site.region is not None or _repeats(site, source.in_loop))


def _repeats(site: Site, in_loop: Callable[[Position | None], bool | None]) -> bool:
    if site.executions < 2:
        return False
    return in_loop(site.at) is not False or (site.at is not None and site.at.function != "<module>")
