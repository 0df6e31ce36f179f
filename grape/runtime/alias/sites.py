"""Places in the code that make tensors, and what is predicted for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch.multiprocessing.reductions import StorageWeakRef

from ...model import Position
from ..accounts.replay_counts import ReplayCounts
from ..buffers.slots import Slot
from ..replaying.entry import Entry
from .rules import Rule


class PredictedRegion(Protocol):
    """A region, as the predictor sees it. Paths are those of its arguments."""

    calls: int
    replay_counts: ReplayCounts
    origins: dict[str, Position]
    learned_paths: set[str]
    small_paths: set[str]

    @property
    def entries(self) -> list[Entry]: ...

    @property
    def expected(self) -> Sequence[Entry]: ...

    @property
    def copy_ns(self) -> float: ...

    @property
    def device_bound(self) -> bool: ...

    @property
    def is_traced(self) -> bool: ...

    @property
    def beside_streams(self) -> bool: ...

    def on_its_stream(self) -> bool: ...


@dataclass(slots=True)
class Target:
    """The known use of one ordinal of a site: the argument at `path` of `region`."""

    path: str
    score: int = 0


@dataclass(slots=True, eq=False)
class Site:
    code: object
    region: PredictedRegion
    rule: Rule
    name: tuple[int, str]
    position: Position
    targets: dict[int, Target] = field(default_factory=dict)
    iteration: int = -1
    ordinal: int = 0
    predicted: int = 0
    nbytes: int = 0
    overhead_ns: int = 0


@dataclass(frozen=True, slots=True)
class Made:
    """A result that a watched callable returned."""

    key: tuple[int, int]
    code: object
    ordinal: int
    rule: Rule
    name: tuple[int, str]
    position: Position
    reference: StorageWeakRef


@dataclass(frozen=True, slots=True)
class Issued:
    site: Site
    ordinal: int
    slot: Slot
    cdata: int
