"""The context that the regions of one process share."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from ...model import Position, Refused
from ...tracing import Tracer
from ..accounts.attention import Attention
from ..alias import Predictor
from ..backends.protocol import Backend
from ..buffers.slots import SlotStore
from ..compression import ExecutableStore
from ..replaying.entry import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class CellName:
    """A cell that runs: its source, and the name that positions in it have."""

    source: str = ""
    shown: str = ""


class KnownRegion(Protocol):
    """A region, as those see it that look after the memory of all."""

    name: str
    parent: str | None
    at: Position
    refused: Refused | None
    over_budget_at: int | None
    over_budget_beside: int
    owner: object
    context: RegionContext
    function: Callable[..., object]

    @property
    def entries(self) -> list[Entry]: ...

    def release(self) -> None: ...


@dataclass(slots=True)
class RegionContext:
    """Everything that the regions of one process share. `observing` is set while a cell runs under Grape.

    `run` numbers the cells; `let_inner_in` is called when the region being traced turns out not to be capturable, so
    that callables inside it may become regions.
    """

    backend: Backend
    tracer: Tracer
    store: SlotStore
    predictor: Predictor
    observing: bool = False
    apply: bool = True
    profile: bool = True
    pairs: bool = False
    """Forward and backward of a module may be two graphs behind one node of autograd. Whoever looks at the graph of the
    results can tell it from eager code's: only where the person asked for a graph of that very module."""
    tolerance: float = 0.0
    memory_budget: int | None = None
    run: int = 0
    recalled: frozenset[tuple[tuple[str, tuple[int, ...]], ...]] = frozenset()
    """Shapes that calls of this cell had in another process: they will come again, as those of an earlier run."""
    cell: CellName = field(default_factory=CellName)
    """The cell that runs under Grape, or did last."""
    stream: int | None = None
    """The stream of the first capture. Graphs share memory without events between them, so all run on this one."""
    aside: Callable[[], bool] = lambda: False
    """True if this thread's calls are observed by somebody else just now, whose tracer a capture would meet: they are
    served, and nothing is learned from them."""
    let_inner_in: Callable[[], None] = lambda: None
    progress: Callable[[str], None] = lambda text: None
    captured_at_s: list[float] = field(default_factory=list)
    """When graphs were captured while a cell ran under Grape, by `time.perf_counter`; each cell begins anew."""
    entered: int = 0
    """Calls of regions that were looked at or served."""
    captures: int = 0
    """Captures so far."""
    beside_group: bool = False
    """True where calls of this cell ran as written because a process group of `torch.distributed` existed."""
    comparing: bool = False
    """Whole iterations of a loop are timed just now: replays are not interrupted for a comparison of single calls."""
    weighs: bool = True
    """Graphs that turn out slower than eager calls go. Where calls overlap with others, times tell nothing."""
    exhausted: bool = False
    """The person's code ran out of memory: nothing is captured any more."""
    executables: ExecutableStore | None = None
    """Of all regions; None where each graph keeps an executable of its own."""
    regions: weakref.WeakSet[KnownRegion] = field(default_factory=weakref.WeakSet)
    serves: bool = True
    """True where graphs that were verified serve calls. Where nothing gets faster they are only checked, and let go."""
    unhurried: bool = False
    """True where looking on and capturing may take as long as they take: for tests, and to see how graphs behave."""
    overlaps: bool = True
    """Operators that need nothing of each other may run beside each other in a graph."""
    attention: Attention = field(default_factory=Attention)
    """The account of what Grape takes of the time of the cell that runs."""
    stand_aside: Callable[[], None] = lambda: None
    """Ends the observation of the cell that runs: what was learned goes on serving, nothing more is looked at."""

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, nothing becomes a region, and nothing is predicted."""
        before, self.predictor.paused = self.predictor.paused, True
        try:
            yield
        finally:
            self.predictor.paused = before

    def __post_init__(self) -> None:
        if self.executables is None and self.backend.updatable:
            self.executables = ExecutableStore()
