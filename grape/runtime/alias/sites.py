"""Places in the code that make tensors, and what is predicted for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.multiprocessing.reductions import StorageWeakRef

from ...model import Position
from ..buffers.slots import Slot
from .rules import Rule

if TYPE_CHECKING:
    from ..regions.region import Region


__all__ = ["Issued", "Made", "Site", "Target"]


@dataclass(slots=True)
class Target:
    """The known use of one ordinal of a site: the argument at `path` of `region`."""

    path: str
    score: int = 0


@dataclass(slots=True, eq=False)
class Site:
    code: Any
    region: Region
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
    code: Any
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
