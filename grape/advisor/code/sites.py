"""Where in the person's code operators ran, gathered over the traced calls: what most rules start from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ...model import DECISION, CellEvidence, HostRead, OpRecord, Position, RegionEvidence, Stop, Trace
from ...model.kept import Kept
from ...model.location import line_of
from ..cost import idle_ms, sync_gap_ms
from ..stopped import read_kind, record_of, stays_on_the_cpu, waits_in_streams
from ..words import ended, in_library, library, milliseconds, times
from .source import cell_source

BRANCHES = frozenset({"if", "while", "assert", "ternary", "bool-op"})
_SYNCS = frozenset({"host-read", "transfer-out", "dynamic"})


@dataclass(slots=True, kw_only=True)
class Site:
    """One line that ran operators of one name, over all traced calls of a region (or in the cell outside of regions).

    `executions` counts them over `traces` calls, of which not all was recorded where it is `cut`; `wait_ns` is the
    CPU's waiting over all executions. `op` is the first of the operators, None for a wait without one
    (`torch.cuda.synchronize()`). Only `_gather` changes it.
    """

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
    segments: int = 0
    """Of an operator stream, that were issued there because the CPU waits."""

    @property
    def at(self) -> Position | None:
        return self.user or self.inner

    @property
    def traces(self) -> int:
        return len(self.region.traces) if self.region is not None else 1

    @property
    def region_name(self) -> str | None:
        return self.region.name if self.region is not None else None

    @property
    def library(self) -> str | None:
        """The package in whose code this happens, None in the person's own."""
        return library(self.user, self.inner)

    @property
    def in_library(self) -> tuple[tuple[str, str], ...]:
        return in_library(self.user, self.inner)

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

    def cost(self, evidence: CellEvidence) -> str:
        """In parentheses, the CPU's waiting; empty where no GPU was timed."""
        return f" ({milliseconds(self.wait_ms)}{'' if self.region is not None else ' each'})" if evidence.cuda else ""

    @property
    def kind(self) -> str:
        return self.op.kind if self.op else "host-read"


def op_sites(
    evidence: CellEvidence,
    wanted: Callable[[OpRecord, Trace, RegionEvidence | None], bool],
    *,
    among: Callable[[Trace], Iterable[OpRecord]],
) -> tuple[Site, ...]:
    """Sites of the operators that `wanted` picks (its region is None outside of regions), in order of appearance.

    `among` gives those of a trace that come into question; it should be a `Kept`.
    """
    gathered: dict[object, Site] = {}
    for region, trace in evidence.all_traces():
        for op in among(trace):
            if wanted(op, trace, region) and not stays_on_the_cpu(evidence, op.inner):
                _gather(gathered, region, trace, op, None)
    return _repeated(evidence, gathered.values())


@Kept
def sync_sites(evidence: CellEvidence) -> tuple[Site, ...]:
    """Sites at which the CPU waited for the device: values read, tensors copied out, shapes that depend on data. Those
    that operator streams met come last.
    """
    gathered: dict[object, Site] = {}
    for region, trace in evidence.all_traces():
        reads = {read.ordinal: read for read in trace.host_reads}
        for op in _waits(trace):
            if stays_on_the_cpu(evidence, op.inner):
                reads.pop(op.ordinal, None)
            else:
                _gather(gathered, region, trace, op, reads.pop(op.ordinal, None))
        for read in reads.values():
            if read.construct != DECISION:  # a graph has none of them, and rewritten code has its finding behind it
                _gather(gathered, region, trace, None, read)
    streamed = (_of_a_stream(evidence, stop) for stop in waits_in_streams(evidence))
    return _repeated(evidence, (*gathered.values(), *streamed))


@Kept
def _waits(trace: Trace) -> tuple[OpRecord, ...]:
    return tuple(op for op in trace.ops if op.kind in _SYNCS)


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
        executions=stop.times,
        wait_ns=stop.total_ns,
        cut=True,
        segments=stop.segments,
    )


def _gather(
    sites: dict[object, Site],
    region: RegionEvidence | None,
    trace: Trace,
    op: OpRecord | None,
    read: HostRead | None,
) -> None:
    user = op.user if op else None
    user = user or (read.position if read else None)
    inner = op.inner if op else None
    construct = read.construct if read else None
    key = (id(region), line_of(user), line_of(inner), op.name if op else None, construct)
    site = sites.get(key)
    if site is None:
        site = sites[key] = Site(region=region, user=user, inner=inner, construct=construct, op=op, cut=trace.cut)
    site.executions += 1
    site.wait_ns += read.wait_ns if read else op.host_ns if op else 0
    if read is not None:
        site.values.append(read.value)
    if op is not None and op.outputs:
        site.shapes.append(op.outputs[0].shape)
        site.nbytes = max(site.nbytes, op.outputs[0].nbytes)


def _repeated(evidence: CellEvidence, sites: Iterable[Site]) -> tuple[Site, ...]:
    """All sites of regions; of the rest of the cell only lines that ran repeatedly, in a loop or in a function."""
    source = cell_source(evidence)
    return tuple(site for site in sites if site.region is not None or _repeats(site, source.in_loop))


def _repeats(site: Site, in_loop: Callable[[Position | None], bool | None]) -> bool:
    if site.executions < 2:
        return False
    return in_loop(site.at) is not False or (site.at is not None and site.at.function != "<module>")
