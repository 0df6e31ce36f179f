"""One captured graph of a region and everything a replay needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from sys import getrefcount

import torch

from ...model.overlap import Overlapped
from ...originals import perf_counter_ns
from ..accounts.replay_counts import ReplayCounts
from ..backends.executables import NoExecutable
from ..backends.protocol import Backend, Graph, MemoryMoved
from ..buffers.placeholders import Placeholders, distinct, whole
from ..buffers.slots import Slot
from ..buffers.strided import alignment
from ..guarding.guards import GuardSet
from ..predication.arms import Arms
from ..training import GradientPlan
from .host_draws import HostDraws
from .output_spec import OutputSpec
from .outputs import Outputs
from .value_guards import ValueGuards
from .versions import Growth, set_versions

_use_count = torch._C._storage_Use_Count


class NoReplay:
    """The entry did not serve the call."""


MISMATCH = NoReplay()
"""The call is not the one that was captured."""
BLOCKED = NoReplay()
"""The replay would overwrite a result that the person still holds."""
OTHER_MODES = NoReplay()
"""The call came under other modes than the capture."""
NO_EXECUTABLE = NoReplay()
"""No executable could be had for the graph; `Entry.missing` says why."""


@dataclass(slots=True)
class Entry:
    """A graph with its guards (`guards`, `value_guards`), its inputs (`placeholders`, `hidden`) and its outputs.

    `written` are indices of argument leaves that the region writes in place, `changed` the tensors from outside that it
    writes, `growth` what that does to version counters. `effectful` is set where a replay changes anything but its own
    outputs: the person's memory, or the random stream.
    """

    backend: Backend
    graph: Graph
    guards: GuardSet
    value_guards: ValueGuards
    placeholders: Placeholders
    hidden: Sequence[torch.Tensor]
    outputs: Outputs
    draws: HostDraws
    output_spec: OutputSpec
    externals: Mapping[int, torch.Tensor]
    written: tuple[int, ...]
    changed: Sequence[torch.Tensor]
    growth: Growth
    effectful: bool
    gradients: GradientPlan
    verified: str
    replay_ms: float
    """Milliseconds that the verifying replay took on the device."""
    capture_ms: float
    shapes: str
    paths: tuple[str, ...]
    replays: int = 0
    settled_replays: int = 0
    """Replays until the last cell ended."""
    replay_counts: ReplayCounts = field(default_factory=ReplayCounts)
    reached: tuple[int, ...] = ()
    """The arguments whose state and code are guarded with the region's own; see `identities`."""
    keep: tuple[object, ...] = ()
    """Objects that the graph reads and nothing else refers to: constants brought to the device at capture."""
    held: tuple[torch.UntypedStorage, ...] = ()
    """The memory of `externals`."""

    modes: tuple[object, ...] = ()
    modes_now: Callable[[], tuple[object, ...]] = tuple
    """The modes at capture, and how to find out what they are; see `environment`."""
    arms: Arms | None = None
    """Which branches a replay took, where the device decides; one that was not compared yet is not used."""
    checked: bool = False
    """True where the region asserts something about tensors: after each replay the host reads whether that held."""
    overlapped: Overlapped | None = None
    """Of a graph that was captured with branches: what they gain."""
    nodes: int = 0
    """Of autograd, that an eager call makes; see `node_numbers`."""
    acted: bool = False
    """True where the last attempt to serve a call has changed anything but this graph's own memory."""
    missing: NoExecutable | None = None
    """Why the last attempt to serve a call found no executable."""
    blocker: Slot | None = None
    """Where the result lies that the last blocked replay would have overwritten."""
    _indices: dict[str, int] = field(default_factory=dict)
    _released: bool = False

    def __post_init__(self) -> None:
        self._count(1)

    def _count(self, one: int) -> None:
        for slot in (*self.placeholders.slots.values(), *self.outputs.slots):
            slot.graphs += one

    def leave_slots(self) -> None:
        """It reads and writes in its slots no more. Idempotent."""
        if not self._released:
            self._released = True
            self._count(-1)

    @property
    def nbytes(self) -> int:
        """Bytes of the executable that has the graph loaded; placeholders and workspace are shared by all graphs."""
        return self.graph.nbytes

    @property
    def apart_bytes(self) -> int:
        """Bytes beside the pool that it shares with no other graph: placeholders and executables."""
        return 0

    @property
    def kept_bytes(self) -> int:
        """Bytes on the host of what `let_go` forgets."""
        return self.outputs.kept_bytes

    def let_go(self) -> None:
        """Forget tensors that the next replay makes again."""
        self.outputs.let_go()
        self.placeholders.let_go()

    @property
    def private_bytes(self) -> int:
        """Bytes of placeholders and results: what the graph would need beside an executable if it shared nothing."""
        return self.placeholders.nbytes + self.outputs.held_bytes

    @property
    def waiting(self) -> bool:
        """True where it cannot be replayed before something else happens, whatever the call."""
        return False

    @property
    def outdated(self) -> bool:
        """True where it will serve no call any more."""
        return False

    def repeatable(self) -> bool:
        """True where a call of this shape goes the way that was captured, and that changes nothing but its results."""
        if self.effectful or self.output_spec.changes or self.value_guards.expected:
            return False
        return self.modes_now() == self.modes and self.guards.holds()

    @property
    def predictable(self) -> bool:
        """True where arguments may be computed where it reads them."""
        return True

    @property
    def needs_aliasing(self) -> bool:
        """True if it matters which arguments share memory: the region writes some, or value guards look through it."""
        return bool(self.written or self.value_guards.steps)

    def index_of(self, path: str) -> int | None:
        """The number of the argument at `path`."""
        if not self._indices:
            self._indices = {name: index for index, name in enumerate(self.paths)}
        return self._indices.get(path)

    def needing_copies(self, leaves: Sequence[torch.Tensor]) -> list[int]:
        """The arguments that do not lie where the graph reads them, but for bound ones."""
        addresses = self.placeholders.addresses
        return [i for i in self.placeholders.movable if leaves[i].data_ptr() != addresses[i]]

    def moved(self, leaves: Sequence[torch.Tensor]) -> list[str]:
        """Paths of the bound arguments that are somewhere else now."""
        addresses = self.placeholders.addresses
        return [self.paths[i] for i in self.placeholders.bound if leaves[i].data_ptr() != addresses[i]]

    def serve(self, leaves: Sequence[torch.Tensor], containers: Sequence[object], to_copy: Sequence[int]) -> object:
        """Replay for these argument leaves and containers; the result, or why this entry cannot serve them.

        The other guards are checked while the device already works, where a replay for nothing would do no harm; but
        what the graph reads must exist.
        """
        self.acted = False
        placeholders = self.placeholders
        if placeholders.bound and self.moved(leaves):
            return MISMATCH
        effectful, gradients, guards = self.effectful, self.gradients, self.guards
        for slot in self.outputs.slots:
            # `slot.occupied`, but for calls of Python
            if _use_count(slot.cdata) > slot.idle or getrefcount(slot.storage_object) > slot.references:
                self.blocker = slot
                return BLOCKED
        for index in to_copy:
            if alignment(leaves[index], placeholders.unit) != placeholders.alignments[index]:
                return MISMATCH
            slot = placeholders.slots[index]
            if _use_count(slot.cdata) > slot.idle or getrefcount(slot.storage_object) > slot.references:
                self.blocker = slot
                return BLOCKED
        if effectful:
            if self.modes_now() != self.modes:
                return OTHER_MODES
            if self._overlaps(leaves) or self._unwritable(leaves) or self._unsavable(leaves):
                return MISMATCH
            if not guards.holds():
                return MISMATCH
            if not gradients.holds() or not gradients.fits():
                return MISMATCH
            if gradients.blocked():
                self.blocker = None
                return BLOCKED
        elif not guards.in_memory():
            return MISMATCH
        arrived: Sequence[torch.Tensor] = ()
        if self.value_guards.steps:
            outcome = self.value_guards.run(leaves, self.externals)
            if outcome is None or not _same(outcome.values, self.value_guards.expected):
                return MISMATCH
            arrived = outcome.tensors
        if gradients.read:
            gradients.bring_home(self.backend)
        if to_copy or arrived:
            self._copy_in(leaves, to_copy, arrived)
        doubtful = self.arms is not None and (self.checked or not self.arms.complete)
        undo = self._undo() if doubtful else None
        try:
            self.graph.replay()
        except MemoryMoved:
            return MISMATCH
        except NoExecutable as missing:
            self.missing = missing.with_traceback(None)  # its frames hold the arguments of the call
            return NO_EXECUTABLE
        if self.arms is not None and undo is not None and not self._sound(self.arms):
            undo()  # an eager call tells which assertion it was, and raises it
            return MISMATCH
        if self.draws.draws:
            self.draws.repeat()
        self.acted = effectful
        if not effectful:
            if self.modes_now() != self.modes:
                return OTHER_MODES
            # Between the launch and the check of addresses before it nothing of the person's has run.
            if not guards.holds(in_memory=True) or not gradients.holds():
                return MISMATCH
        if gradients.active:
            gradients.leave()
        self.replays += 1
        if self.growth.any:
            # Autograd must see that values it may have saved are gone, where it would have seen it.
            counted, versions = self.growth.due(leaves)
            if self.written:
                self._copy_back(leaves)
            set_versions(counted, versions)
        return self.results(leaves, containers)

    def results(self, leaves: Sequence[torch.Tensor], containers: Sequence[object]) -> object:
        """The result of the call, from what the last replay left; changed containers are changed on the way."""
        return self.output_spec.serve(leaves, containers, self.outputs.hand_out())

    def _undo(self) -> Callable[[], None]:
        """Takes back what the next replay does, but for its outputs."""
        if not self.effectful:
            return lambda: None
        state = self.backend.rng_state()
        in_place = [self.placeholders.tensor(i) for i in set(self.written).intersection(self.placeholders.in_place)]
        kept = [(whole(tensor), whole(tensor).clone()) for tensor in (*self.changed, *in_place)]

        def undo() -> None:
            self.backend.set_rng_state(state)
            for tensor, before in kept:
                tensor.copy_(before)

        return undo

    def _sound(self, arms: Arms) -> bool:
        """True if the last replay took branches that were compared, and no assertion failed. Waits for the device."""
        return not (self.checked and bool(arms.failed)) and arms.known()

    def _overlaps(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Is an argument the very memory that the region reads or writes from outside? At capture it was not."""
        changed = {tensor.untyped_storage()._cdata for tensor in self.changed}
        if changed and any(leaf.untyped_storage()._cdata in changed for leaf in leaves):
            return True
        outside = {tensor.untyped_storage()._cdata for tensor in self.externals.values()} if self.written else ()
        return any(leaves[index].untyped_storage()._cdata in outside for index in self.written)

    def _unwritable(self, leaves: Sequence[torch.Tensor]) -> bool:
        """An inference tensor may not be written outside of inference mode; the eager call says so."""
        return not torch.is_inference_mode_enabled() and any(leaves[i].is_inference() for i in self.written)

    def _unsavable(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Autograd saves no inference tensor. Where the capture was given others, the eager call says so."""
        if not self.gradients.active:
            return False
        given = self.placeholders.inference
        return any(leaf.is_inference() and not before for leaf, before in zip(leaves, given, strict=True))

    def _copy_in(self, leaves: Sequence[torch.Tensor], to_copy: Sequence[int], arrived: Sequence[torch.Tensor]) -> None:
        targets: list[torch.Tensor] = list(self.hidden)
        sources: list[torch.Tensor] = list(arrived)
        for index in to_copy:
            leaf = leaves[index]
            slot = self.placeholders.slots[index]
            if slot.keeper is not None:
                slot.vacate()
            flat = self.placeholders.stretch(index) if not self.written else None
            if flat is None:
                target = self.placeholders.target(index)
                targets.append(target)
                sources.append(leaf if target.shape == leaf.shape else distinct(leaf))
            else:
                targets.append(flat)
                sources.append(leaf.as_strided(flat.shape, flat.stride(), leaf.storage_offset()))
            self.replay_counts.copied(self.paths[index], leaf.nbytes)
        start = perf_counter_ns()
        self.backend.copy(targets, sources)
        self.replay_counts.copy_ns = (perf_counter_ns() - start) / len(targets)

    def _copy_back(self, leaves: Sequence[torch.Tensor]) -> None:
        changed = [i for i in self.written if leaves[i].data_ptr() != self.placeholders.addresses[i]]
        if changed:
            self.backend.copy([distinct(leaves[i]) for i in changed], [self.placeholders.target(i) for i in changed])

    def release(self) -> None:
        self.graph.release()
        self.leave_slots()


def identities(things: Sequence[object]) -> tuple[int, ...]:
    """Tells whether two graphs guard the same objects: each set of guards keeps those that it found alive."""
    return tuple(map(id, things))


def _same(found: Sequence[object], expected: Sequence[object]) -> bool:
    """By their text, which tells 0.0 from -0.0 and 1 from True, and has one NaN."""
    return all(type(a) is type(b) and repr(a) == repr(b) for a, b in zip(found, expected, strict=True))
