"""The question to a capture, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from ...model import NoMemory, NoRoom, Refused, RetryLater, Trace
from ...tracing import RecordedCall, Tracer
from ..accounts.attention import Attention
from ..backends.protocol import Backend
from ..buffers.slots import SlotStore
from ..compression import ExecutableStore
from ..guarding.guards import GuardSet
from ..guarding.structure import Layout
from ..regions.specialization import Found
from ..replaying.entry import Entry
from ..replaying.looks import Look
from ..training import Backwards


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The facts that a capture needs: the person's function, how to call it, and what earlier calls taught."""

    function: Callable[..., object]
    root: object
    backend: Backend
    tracer: Tracer
    bound: Collection[int]
    store: SlotStore
    executables: ExecutableStore | None
    """Where the backend's graphs share executables."""
    owner: Hashable
    """Whose graphs use the slots."""
    in_place: Collection[str]
    """Paths of results that were seen to be dead, or to be the next call's arguments, one call later."""
    writes: Collection[str]
    """Names of arguments and outside tensors that earlier calls wrote in place; they are snapshotted."""
    tolerance: float
    guards: GuardSet | None
    """Those of another graph, where they guard the same state and hold."""
    plain: Collection[object]
    """Operators whose `out=` form did not give the bits of the other."""
    backwards: Backwards | None = None
    """The gradients that were seen of its results, where a pair of graphs may serve it."""
    paused: Callable[[], AbstractContextManager[None]] = nullcontext
    """Within it nothing becomes a region."""
    attention: Attention = field(default_factory=Attention)
    """Where the time of the comparison is booked."""
    next: Sequence[Entry]
    """The graphs that are likely to read what this one returns."""
    overlaps: bool = True
    """Operators may run beside each other: see `plan_overlap`."""
    alike: Sequence[Entry] = ()
    """Other graphs of the region: what is equal there is kept once."""
    landing: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """See `Placeholders`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A call that was served eagerly and captured on the way."""

    result: object
    outcome: Entry | Refused | RetryLater | NoMemory | NoRoom
    trace: Trace
    found: Found = field(default_factory=Found)
    faithful: frozenset[object] = frozenset()
    """Operators whose `out=` forms gave the bits of the eager run."""
    plain: frozenset[object] = frozenset()
    """See `Request.plain`: to be tried without, where the outcome is `Later.FORMS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerRun:
    """The run that serves the call. The captured run follows `call`, and its replay must leave what this one left."""

    call: RecordedCall
    after: Layout
    """Of (result, args, kwargs)."""
    looks: Sequence[Look]
    """Looks of the leaves of `after` when the call was over."""
    random_before: object
    random_after: object
    most_iterations: int
    """More than this no loop of a compared replay may take."""
