"""Evidence, which the session hands to the advisor: everything observed about a cell, as frozen data.

A rule is a function of this evidence and of nothing else, so that a recorded cell can be judged again at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .codes import Outcome
from .graph_memory import GraphMemory
from .location import Position
from .outcome import Decision, Refused
from .overlap import Overlapped
from .stream import StreamEvidence
from .times.cell_time import CellTime
from .times.lines import LineTimes
from .times.loading import LoaderWait
from .times.measured import Measured
from .times.ranks import RanksEvidence
from .times.spent import Spent
from .times.timeline import MemoryCurve, Timeline
from .trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeCount:
    """One distinct set of argument shapes of a region.

    `shapes` names each tensor argument: (("past.0", (5, 12, 64, 64)), ...). `order` is the ordinal of the first call
    that had them. `graph_bytes` and `capture_ms` are 0 where nothing was captured.
    """

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    calls: int
    order: int
    captured: bool = False
    capture_ms: float = 0.0
    graph_bytes: int = 0
    earlier_runs: int = 0
    """Cells before this one that had these shapes."""
    first_ms: float | None = None
    """Milliseconds of the first call of all with these shapes, where it was timed; it may make plans, or compile."""
    warm_ms: float | None = None
    """The median of later eager calls; None where none was timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRecord:
    """An argument that had to be copied into its placeholder at replays. `bytes` is per call.

    `made_at` is the line that made the copied tensor, where it was seen; `unpredicted` says why that line cannot write
    into the placeholder itself.
    """

    argument: str
    bytes: int
    calls: int
    made_at: Position | None = None
    unpredicted: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarChange:
    """A Python number that reached an operator and was another one the next time."""

    operator: str
    values: tuple[object, ...]
    at: Position | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionEvidence:
    """All that is known of one region. Times are per call, `n` calls each; None where not measured."""

    name: str
    at: Position
    end_line: int | None
    outcome: Outcome
    refused: Refused | None
    calls: int
    replays: int
    parent: str | None = None
    verified: str | None = None
    traces: tuple[Trace, ...] = ()
    before: Timeline | None = None
    after: Timeline | None = None
    before_ms: Measured | None = None
    after_ms: Measured | None = None
    guards_ms: float | None = None
    """Milliseconds that the host took to see that what the region depends on is unchanged; None where nobody timed it.
    """
    predicted_ms: float | None = None
    """Milliseconds that a replayed call should take, predicted from the eager calls; None where no device work was
    profiled."""
    shapes: tuple[ShapeCount, ...] = ()
    copies: tuple[CopyRecord, ...] = ()
    scalar_changes: tuple[ScalarChange, ...] = ()
    decisions: tuple[Decision, ...] = ()
    copied_bytes_per_call: int = 0
    alias_hits: int = 0
    alias_misses: int = 0
    graph_bytes: int = 0
    graph_memory: GraphMemory | None = None
    """Memory of its graphs; None where there are none, and where each has an executable of its own."""
    loop_line: int | None = None
    """Where the region is a part of a loop's body: the line of the loop."""
    paired: bool = False
    """True where forward and backward of a module replay as two graphs behind autograd."""
    afterwards_ms: tuple[float, ...] = ()
    """Times of calls that brought new shapes after looking on had an end, on the host's clock, which `calls` does not
    count; of a module in which a first visit of a shape was seen to be slow."""
    overlapped: Overlapped | None = None
    """Where its graph was captured with branches: what they gain."""
    wasted_iterations: int = 0
    """Replays that changed nothing, because the device had left their loop and the host did not know yet."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class CellEvidence:
    """All that is known of one cell. `trace` holds operators that ran outside every region."""

    file: str
    source: str
    device: str
    backend: str
    wall_ms: float
    engine: str = "regions"
    """The engine that looked at the cell, or served it: ``regions`` or ``streams``."""
    streams: tuple[StreamEvidence, ...] = ()
    regions: tuple[RegionEvidence, ...] = ()
    trace: Trace | None = None
    traced_earlier: bool = False
    """True where `trace` is of an earlier run of the same cell."""
    timeline: Timeline | None = None
    memory: MemoryCurve = MemoryCurve()
    error: str | None = None
    cuda: bool = False
    notes: tuple[str, ...] = ()
    profile_only: bool = False
    """True under ``--profile``: observed and advised, nothing applied."""
    sources: tuple[tuple[str, str], ...] = ()
    """(name, source) of other cells and files of the person's own that positions name; what is known of them."""
    graph_memory: GraphMemory | None = None
    """Memory of the graphs of all regions at the end of the cell."""
    as_written: str | None = None
    """Why all of the cell, or the rest of it, ran as written; None where nothing stood in the way."""
    time: CellTime | None = None
    """The time that the person waited, and that the plain cell takes; set when the report is made."""
    given_up: str | None = None
    """Why graphs do not serve the next runs of the cell although they could; None where nothing is to be said."""
    left_to: str = "it runs as written"
    """The words for what becomes of the next runs then."""
    torch_ran: bool = False
    """True where an operator of torch was seen anywhere in the cell."""
    called_again: int = 0
    """Calls of that which was called most often of what ran operators, be it too small for a row in `regions`."""
    loaders: tuple[LoaderWait, ...] = ()
    """What lines waited for their `DataLoader`s."""
    looked_ms: float = 0.0
    """Milliseconds of `wall_ms` that looking on took."""
    looked_on: bool = True
    """False where looking on had an end before the cell, as it had taken more than it may."""
    captured_at_ms: tuple[float, ...] = ()
    """When graphs were captured, from the start of the cell, which is that of `memory` too."""
    lines: LineTimes | None = None
    """Time by line of the cell, of the last run that was watched; None where it was too short, or not looked at."""
    ranks: RanksEvidence | None = None
    """Set where the process belongs to a process group of several ranks."""
    children: int = 0
    """Processes that were forked off while the cell ran."""
    spent: tuple[Spent, ...] | None = None
    """Set where a report is read from its JSON, and this cannot be told from the rest."""

    def all_traces(self) -> Iterator[tuple[RegionEvidence | None, Trace]]:
        """Of each region, and of what ran outside of regions (None)."""
        for region in self.regions:
            for trace in region.traces:
                yield region, trace
        if self.trace is not None:
            yield None, self.trace
