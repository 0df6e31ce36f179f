"""Serves the graphs of many shapes with few executables.

A shape is admitted once: its graph is tried on an executable of a class, written there a second time from its record,
and replayed under verification. From then on some executable has the shape loaded, and launches pass the store by, or
`replay` switches one to it. What is certain of an executable: either it does the work of a verified shape, or nobody
launches it before it was switched.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch

from ...originals import perf_counter_ns
from ..backends.executables import NoExecutable, UpdatableGraph
from .account import StoreAccount
from .admission import Verify, admit
from .classes import Classes, TopologyClass
from .members import ExecutableGroup, Loaded, Member, User
from .residency import Limits
from .resident_executables import ResidentExecutables
from .switching import Refusing, Waiting, bring
from .working_set import shrink

EXECUTABLES = 32
"""At most so many executables for the shapes of one owner, where nobody says another number."""
GRAPH_BYTES = 256 << 20
"""So many bytes of whole graphs, prepared writes and what users keep are kept on the host beside the records."""
_NO_ROOM = "there is no room for an executable on the device"


@dataclass(slots=True, eq=False)
class ExecutableStore:
    """Replays shapes. `limits` may be changed at any time; `apply_limits` then makes it so.

    `graph_budget_bytes` bounds whole graphs, prepared writes and what users keep on the host beside the records,
    because a replay from them is cheaper; what belongs to classes is kept in any case.
    """

    limits: Limits = field(default_factory=lambda: Limits(executables=EXECUTABLES, nbytes=None))
    graph_budget_bytes: int = GRAPH_BYTES
    clock_ns: Callable[[], int] = perf_counter_ns
    _classes: dict[Hashable, Classes] = field(default_factory=dict)
    _groups: dict[TopologyClass, ExecutableGroup] = field(default_factory=dict)
    _members: dict[Hashable, Member] = field(default_factory=dict)
    _resident: ResidentExecutables = field(init=False)

    def __post_init__(self) -> None:
        self._resident = ResidentExecutables(self.limits, self.clock_ns)

    def __contains__(self, shape: Hashable) -> bool:
        return shape in self._members

    def __len__(self) -> int:
        return len(self._members)

    def admit(self, shape: Hashable, graph: UpdatableGraph, verify: Verify, *, owner: Hashable, user: User) -> bool:
        """Take over the graph of a shape. False where its replay could not be verified, or there is no room for its
        executable: then the graph stays the caller's, as it does where an exception of `verify` propagates.

        Only shapes of one `owner` share executables, and `limits.executables` counts by owner. `user` launches the
        shape.
        """
        self.forget(shape)
        resident = self._resident
        resident.limits = self.limits
        classes = self._classes.setdefault(owner, Classes())
        resident.usage.touch(shape)
        member: Member | None = None
        try:
            member = admit(resident, classes, self._groups, shape, graph, verify, owner=owner, user=user)
            if member is None:
                return False
            self._members[shape] = member
        finally:
            if shape not in self._members:
                self._disown(owner, shape, graph)
        self._shrink_working_set()
        return True

    def replay(self, shape: Hashable) -> None:
        """Enqueue the graph of an admitted shape on the current stream.

        Raises `NoExecutable`, and then has launched nothing.
        """
        member = self._members.get(shape)
        if member is None:
            raise NoExecutable("this shape was not captured, or was given up", gone=True)
        self._resident.limits = self.limits
        prepared = member.prepared
        loaded = member.loaded or self._bring(member)
        loaded.executable.replay()
        member = self._members[shape]
        self._resident.note(member)
        if member.prepared is not prepared:
            self._shrink_working_set()

    def _bring(self, member: Member) -> Loaded:
        brought: Loaded | Refusing | Waiting | None = None
        missing = NoExecutable(_NO_ROOM)
        try:
            brought = bring(self._resident, member)
        except torch.OutOfMemoryError as error:
            self._resident.device_full = True
            missing = NoExecutable(str(error))
        except RuntimeError as error:  # of a driver that is out of order: not the person's
            self.forget(member.shape)
            self._resident.counts[member.group.owner].refused += 1
            missing = NoExecutable(str(error), gone=True)
        if isinstance(brought, Loaded):
            return brought
        if isinstance(brought, Refusing):
            return self._separate(member)
        if isinstance(brought, Waiting):
            missing = NoExecutable("the executables that would have to go are more useful", waiting=True)
        raise missing

    def _separate(self, member: Member) -> Loaded:
        """A shape that its class's executables refuse now: its own graph serves it, if that is still there."""
        graph, member.graph = member.graph, None
        owner = member.group.owner
        counts, classes = self._resident.counts[owner], self._classes[owner]
        self.forget(member.shape)
        if graph is None:
            self._resident.counts[owner].refused += 1
            raise NoExecutable("the device refused an update that it had accepted before", gone=True)
        counts.refused += 1
        counts.launches -= member.user.launches  # they are counted with the shape, which stays
        self._resident.counts[owner], self._classes[owner] = counts, classes  # gone where it was the only shape
        alone = Member(
            member.shape,
            ExecutableGroup(graph, None, member.group.owner),
            b"",
            None,
            None,
            member.user,
            counted=member.counted,
        )
        self._members[member.shape] = alone
        made = self._resident.make(alone.group)
        if made is None:
            raise NoExecutable(_NO_ROOM)
        self._resident.load(made, alone)
        return made

    def apply_limits(self) -> None:
        """Evict until `limits` and `graph_budget_bytes` hold."""
        self._resident.limits = self.limits
        self._resident.apply_limits()
        self._shrink_working_set()

    def _shrink_working_set(self) -> None:
        shrink(self._members.values(), self.graph_budget_bytes, self._resident.usage.weight)

    @property
    def crowded(self) -> bool:
        """True where `limits.class_bytes` may matter: one owner alone could have as many executables as it may."""
        return len(self._resident.all) >= self.limits.executables

    def fits(self, owner: Hashable) -> bool:
        """True where the limits leave room for an executable of some shape of this owner."""
        limit = self.limits.nbytes
        return limit is None or any(
            one.group.executable_bytes <= limit for one in self._members.values() if one.group.owner is owner
        )

    @property
    def device_full(self) -> bool:
        """True where the last executable that could not be had was too much for the device, not for the limits."""
        return self._resident.device_full

    def executable_bytes(self, shape: Hashable) -> int:
        """Of the executable that has the shape loaded; 0 where none has."""
        member = self._members.get(shape)
        return member.loaded.executable.nbytes if member is not None and member.loaded is not None else 0

    def forget(self, shape: Hashable) -> None:
        """Release what belongs to a shape alone; unknown ones are fine. Queued launches are still done.

        An interrupt leaves the shape known, and a second call does the rest.
        """
        member = self._members.get(shape)
        resident = self._resident
        if member is None:
            resident.usage.forget(shape)
            return
        resident.note(member)
        resident.usage.forget(shape)
        group = member.group
        if member.graph is not None:
            member.graph.release()
        if member.loaded is not None:
            resident.load(member.loaded, None)
        self._classes[group.owner].remove(shape)
        if group.topology is None or not group.topology.shapes:
            for loaded in list(group.executables.values()):
                resident.drop(loaded)
            group.graph.release()
            resident.usage.forget(group)
            if group.topology is not None:
                self._groups.pop(group.topology, None)
        resident.counts[group.owner].launches += member.user.launches
        del self._members[shape]
        self._forget_owner(group.owner)

    def _disown(self, owner: Hashable, shape: Hashable, graph: UpdatableGraph) -> None:
        """Leave nothing of an admission that did not end well; the graph stays the caller's."""
        resident = self._resident
        for loaded in list(resident.all.values()):
            if loaded.group.graph is graph:
                resident.drop(loaded)
            elif loaded.member is not None and loaded.member.shape == shape:
                resident.load(loaded, None)
        last = self._classes[owner].remove(shape)
        if last is not None:
            self._groups.pop(last, None)
        resident.usage.forget(shape)
        self._forget_owner(owner)

    def _forget_owner(self, owner: Hashable) -> None:
        """Nothing is kept of an owner without shapes."""
        if not any(other.group.owner is owner for other in self._members.values()):
            self._classes.pop(owner, None)
            self._resident.counts.pop(owner, None)

    def release(self) -> None:
        """Forget every shape. Idempotent."""
        for shape in list(self._members):
            self.forget(shape)

    def account(self, owner: Hashable = None) -> StoreAccount:
        """The cost of the shapes now: of those of `owner`, or of everybody.

        `all_resident_bytes` takes each shape's executable to be as large as its class's.
        """
        resident = self._resident
        members = [one for one in self._members.values() if owner is None or one.group.owner is owner]
        loaded = [one for one in resident.all.values() if owner is None or one.group.owner is owner]
        groups = {id(member.group): member.group for member in members}.values()
        graphs = [member.graph for member in members if member.graph is not None] + [group.graph for group in groups]
        prepared = [member.prepared for member in members if member.prepared is not None]
        prepared += [one for group in groups for one in group.originals.values()]
        counts = [found for one, found in resident.counts.items() if owner is None or one is owner]
        return StoreAccount(
            shapes=len(members),
            classes=sum(group.topology is not None for group in groups),
            alone=sum(group.topology is None for group in groups),
            executables=len(loaded),
            executable_bytes=sum(one.executable.nbytes for one in loaded),
            record_bytes=sum(len(member.record) for member in members),
            base_bytes=sum(group.topology.base.nbytes for group in groups if group.topology is not None),
            graphs=len(graphs),
            graph_bytes=sum(graph.host_bytes for graph in graphs),
            prepared_bytes=sum(one.nbytes for one in prepared),
            kept_bytes=sum(member.user.kept_bytes for member in members),
            launches=sum(member.user.launches for member in members) + sum(one.launches for one in counts),
            switches=sum(one.switches for one in counts),
            instantiations=sum(one.instantiations for one in counts),
            evictions=sum(one.evictions for one in counts),
            refused=sum(one.refused for one in counts),
            all_resident_bytes=sum(member.group.executable_bytes for member in members),
        )
