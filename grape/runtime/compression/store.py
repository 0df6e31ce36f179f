"""Serves the graphs of many shapes with few executables.

A shape is admitted once: its graph is tried on an executable of a class, written there a second time from its record,
and replayed under verification. Later `replay` finds an executable that has the shape loaded, or switches one. A
shape that has paid for as many switches as a new executable costs gets one of its own, where limits allow.

What is certain of an executable: either it has a verified shape loaded (`shape`), or nobody launches it before it was
switched. `touched` are the nodes that may differ from the class's base, so no switch needs to know what was there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import count

import torch

from ..backends.protocol import Executable, UpdatableGraph
from .account import Estimate, StoreAccount
from .classes import Classes, TopologyClass
from .codec import Base, Record, RecordError
from .residency import Limits, Resident, Usage, evictions

__all__ = ["Admitted", "ExecutableStore", "Launched", "NotAdmitted", "Unavailable"]

Verify = Callable[[Callable[[], None]], bool]
"""Gets a launch, and says whether it does what the eager call does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The store owns the graph now. `shared`: it joined a class that had shapes."""

    shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAdmitted:
    """The graph stays the caller's."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """The replay is on the stream. `switch_ns`: what bringing the shape to an executable took on the host."""

    switch_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """Nothing was launched; the call has to run eagerly."""

    why: str


@dataclass(slots=True, eq=False)
class _Kin:
    """A class, or a shape alone, with what its executables are made from and what was measured of them."""

    graph: UpdatableGraph
    topology: TopologyClass | None
    executable_bytes: int = 0
    instantiate_ns: float = 0.0
    nodes_ns: float | None = None
    """Of writing one node, reading its record included."""
    whole_ns: float | None = None
    """Of an update from a whole graph."""


@dataclass(slots=True, eq=False)
class _Member:
    shape: Hashable
    kin: _Kin
    record: bytes
    attachment: object
    graph: UpdatableGraph | None
    """While it is in the working set. That of the shape that founded the class (`founder`) is `kin.graph`."""
    founder: bool = False
    paid_ns: float = 0.0

    @property
    def whole(self) -> UpdatableGraph | None:
        """The shape's graph, where it is still there."""
        return self.kin.graph if self.founder else self.graph


@dataclass(slots=True, eq=False)
class _Loaded:
    number: int
    executable: Executable
    kin: _Kin
    shape: Hashable
    touched: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Counts:
    launches: int = 0
    switches: int = 0
    instantiations: int = 0
    evictions: int = 0
    refused: int = 0


_NOWHERE = object()
"""What an executable has loaded that nobody may launch."""


@dataclass(slots=True, eq=False)
class ExecutableStore:
    """Replays shapes. `limits` may be changed at any time; `apply_limits` then makes it so.

    `graph_budget_bytes` bounds the whole graphs that are kept on the host beside the records, because an update from
    a graph can be cheaper than one node by node; those that classes are founded on are kept in any case.
    """

    limits: Limits = field(default_factory=lambda: Limits(executables=32, nbytes=None))
    graph_budget_bytes: int = 256 << 20
    clock_ns: Callable[[], int] = time.perf_counter_ns
    _classes: Classes = field(default_factory=Classes)
    _kin: dict[TopologyClass, _Kin] = field(default_factory=dict)
    _members: dict[Hashable, _Member] = field(default_factory=dict)
    _loaded: dict[int, _Loaded] = field(default_factory=dict)
    _usage: Usage = field(default_factory=Usage)
    _counts: _Counts = field(default_factory=_Counts)
    _numbers: count[int] = field(default_factory=count)

    def __contains__(self, shape: Hashable) -> bool:
        return shape in self._members

    # -- admission ---------------------------------------------------------------------------------------------------

    def admit(self, shape: Hashable, graph: UpdatableGraph, verify: Verify) -> Admitted | NotAdmitted:
        """Take over the graph of a shape. An exception of `verify` propagates, and the shape is not admitted."""
        self.forget(shape)
        self._usage.touch(shape)
        topology = graph.topology
        if topology is None:
            return self._admit_alone(shape, graph, verify)
        parameters = graph.parameters()
        joined: list[tuple[_Member, _Loaded]] = []

        def accepts(candidate: TopologyClass) -> bool:
            tried = self._try(shape, graph, parameters, self._kin[candidate], verify)
            joined.extend([tried] if tried else [])
            return tried is not None

        kin = _Kin(graph, None)
        founders: list[_Loaded] = []

        def found() -> Base | None:
            made = self._found(kin, verify)
            founders.extend([made] if made else [])
            return Base(parameters) if made else None

        placed = self._classes.place(shape, topology, accepts=accepts, found=found)
        if placed is None:
            self._usage.forget(shape)
            return NotAdmitted(why="its replay could not be verified, or there is no room for its executable")
        if joined:
            self._members[shape], loaded = joined[0]
            loaded.shape = shape
            self._shrink_working_set()
            return Admitted(shared=True)
        kin.topology = placed
        self._kin[placed] = kin
        founders[0].shape = shape
        self._members[shape] = _Member(shape, kin, placed.base.encode(parameters), graph.attachment, None, founder=True)
        return Admitted(shared=False)

    def _admit_alone(self, shape: Hashable, graph: UpdatableGraph, verify: Verify) -> Admitted | NotAdmitted:
        kin = _Kin(graph, None)
        loaded = self._found(kin, verify)
        if loaded is None:
            self._usage.forget(shape)
            return NotAdmitted(why="its replay could not be verified, or there is no room for its executable")
        loaded.shape = shape
        self._members[shape] = _Member(shape, kin, b"", None, None)
        return Admitted(shared=False)

    def _found(self, kin: _Kin, verify: Verify) -> _Loaded | None:
        """An executable of a graph that is not known yet; None where it cannot be had or is wrong."""
        loaded = self._make(kin)
        if loaded is None:
            return None
        verified = False
        try:
            verified = verify(loaded.executable.replay)
        finally:
            if not verified:
                self._drop(loaded)
        return loaded if verified else None

    def _try(
        self, shape: Hashable, graph: UpdatableGraph, parameters: tuple[bytes, ...], kin: _Kin, verify: Verify
    ) -> tuple[_Member, _Loaded] | None:
        """The shape as a member of a class, and the executable that took it and then did the right thing."""
        assert kin.topology is not None
        loaded = min(self._of(kin), key=self._benefit_ns, default=None) or self._make(kin)
        if loaded is None:
            return None
        base = kin.topology.base
        data = base.encode(parameters)
        record = Record(base, data)
        if record.nodes() != parameters:
            return None
        member = _Member(shape, kin, data, graph.attachment, graph)
        with _Uncertain(self, loaded) as attempt:
            before, label = loaded.touched, loaded.shape
            loaded.shape, loaded.touched = _NOWHERE, before | record.changed
            accepted = self._update_whole(loaded, member)
            if not accepted:
                loaded.shape, loaded.touched = label, before
                attempt.certain = True
                return None
            # A second time from the record: that is how later switches write it.
            accepted = self._update_nodes(loaded, member, record) and verify(loaded.executable.replay)
            attempt.certain = True
        if not accepted:
            return None
        loaded.touched = record.changed
        return member, loaded

    # -- replay ------------------------------------------------------------------------------------------------------

    def replay(self, shape: Hashable) -> Launched | Unavailable:
        """Enqueue the graph of an admitted shape on the current stream."""
        member = self._members.get(shape)
        if member is None:
            return Unavailable(why="this shape was not captured, or was given up")
        self._usage.touch(shape, member.kin)
        self._counts.launches += 1
        loaded = next((one for one in self._loaded.values() if one.shape == shape), None)
        start = self.clock_ns()
        if loaded is None:
            try:
                loaded = self._bring(member)
            except RecordError as error:
                return self._give_up(member, str(error))
            if loaded is None:
                self._counts.launches -= 1
                if shape not in self._members:
                    return Unavailable(why="the device refused an update that it had accepted before")
                return Unavailable(why="there is no room for an executable on the device")
            loaded.executable.replay()
            return Launched(switch_ns=self.clock_ns() - start)
        loaded.executable.replay()
        return Launched(switch_ns=0)

    def _bring(self, member: _Member) -> _Loaded | None:
        kin = member.kin
        if kin.topology is None:
            made = self._make(kin)
            if made is not None:
                made.shape = member.shape
            return made
        group = self._of(kin)
        loaded: _Loaded | None = None
        if group and member.paid_ns >= kin.instantiate_ns:
            worth = self._usage.weight(member.shape) * member.paid_ns
            loaded = self._make(kin, worth_ns=worth)
            if loaded is not None:
                member.paid_ns = 0.0
        if loaded is None:
            group = self._of(kin)
            loaded = min(group, key=self._benefit_ns) if group else self._make(kin)
        if loaded is None:
            return None
        return loaded if self._switch(loaded, member) else self._separate(member)

    def _switch(self, loaded: _Loaded, member: _Member) -> bool:
        assert member.kin.topology is not None
        start = self.clock_ns()
        record = Record(member.kin.topology.base, member.record)
        changes = len(record.changed | loaded.touched)
        whole_ns, nodes_ns = member.kin.whole_ns, member.kin.nodes_ns
        whole = member.whole is not None and (
            whole_ns is None or nodes_ns is None or whole_ns <= nodes_ns * max(changes, 1)
        )
        with _Uncertain(self, loaded) as attempt:
            loaded.shape = _NOWHERE
            done = self._update_whole(loaded, member) if whole else self._update_nodes(loaded, member, record)
            attempt.certain = done
        if done:
            loaded.shape, loaded.touched = member.shape, record.changed
            member.paid_ns += self.clock_ns() - start
            self._counts.switches += 1
        return done

    def _update_whole(self, loaded: _Loaded, member: _Member) -> bool:
        assert member.whole is not None
        start = self.clock_ns()
        done = loaded.executable.update_from(member.whole)
        if done:
            member.kin.whole_ns = _average(member.kin.whole_ns, self.clock_ns() - start)
        return done

    def _update_nodes(self, loaded: _Loaded, member: _Member, record: Record) -> bool:
        assert member.kin.topology is not None
        base = member.kin.topology.base
        start = self.clock_ns()
        changes = [
            (number, record.node(number) if number in record.changed else base.nodes[number])
            for number in sorted(record.changed | loaded.touched)
        ]
        done = loaded.executable.update_nodes(changes, member.attachment)
        if done and changes:
            member.kin.nodes_ns = _average(member.kin.nodes_ns, (self.clock_ns() - start) / len(changes))
        return done

    def _separate(self, member: _Member) -> _Loaded | None:
        """A shape that its class's executables refuse now: its own graph serves it, if that is still there."""
        self._counts.refused += 1
        graph, member.graph = member.graph, None
        self.forget(member.shape)
        if graph is None:
            return None
        alone = _Member(member.shape, _Kin(graph, None), b"", None, None)
        self._members[member.shape] = alone
        made = self._make(alone.kin)
        if made is not None:
            made.shape = member.shape
        return made

    def _give_up(self, member: _Member, why: str) -> Unavailable:
        self._counts.refused += 1
        self._counts.launches -= 1
        self.forget(member.shape)
        return Unavailable(why=why)

    # -- residency ---------------------------------------------------------------------------------------------------

    def apply_limits(self) -> None:
        """Evict until `limits` and `graph_budget_bytes` hold."""
        for number in evictions(self._residents(), self.limits) or ():
            self._evict(self._loaded[number])
        self._shrink_working_set()

    def _make(self, kin: _Kin, *, worth_ns: float | None = None) -> _Loaded | None:
        """A further executable, for which less useful ones may have to go; None where there is no room.

        Its content is that of `kin.graph`. With `worth_ns` only executables that are worth less in all go for it.
        """
        room = evictions(self._residents(), self.limits, nbytes=kin.executable_bytes, count=1, worth_ns=worth_ns)
        if room is None:
            return None
        for number in room:
            self._evict(self._loaded[number])
        start = self.clock_ns()
        try:
            executable = kin.graph.instantiate()
        except torch.OutOfMemoryError:
            if worth_ns is not None:
                return None
            for loaded in list(self._loaded.values()):
                self._evict(loaded)
            try:
                executable = kin.graph.instantiate()
            except torch.OutOfMemoryError:
                return None
        kin.instantiate_ns = _average(kin.instantiate_ns or None, self.clock_ns() - start)
        kin.executable_bytes = max(kin.executable_bytes, executable.nbytes)
        self._counts.instantiations += 1
        # Its size is known only now.
        room = evictions(self._residents(), self.limits, nbytes=executable.nbytes, count=1)
        if room is None:
            executable.release()
            return None
        for number in room:
            self._evict(self._loaded[number])
        loaded = _Loaded(next(self._numbers), executable, kin, _NOWHERE)
        self._loaded[loaded.number] = loaded
        return loaded

    def _of(self, kin: _Kin) -> list[_Loaded]:
        return [loaded for loaded in self._loaded.values() if loaded.kin is kin]

    def _residents(self) -> list[Resident]:
        return [
            Resident(number=one.number, nbytes=one.executable.nbytes, benefit_ns=self._benefit_ns(one))
            for one in self._loaded.values()
        ]

    def _benefit_ns(self, loaded: _Loaded) -> float:
        """Recent calls times what each would cost without this executable: a switch, or, for the last, making it."""
        kin = loaded.kin
        if len(self._of(kin)) == 1:
            return self._usage.weight(kin) * kin.instantiate_ns
        changes = max(len(loaded.touched), 1)
        switch_ns = min((cost for cost in (kin.whole_ns, (kin.nodes_ns or 0.0) * changes) if cost), default=0.0)
        return self._usage.weight(loaded.shape) * switch_ns

    def _evict(self, loaded: _Loaded) -> None:
        self._counts.evictions += 1
        self._drop(loaded)

    def _drop(self, loaded: _Loaded) -> None:
        if self._loaded.pop(loaded.number, None) is not None:
            loaded.executable.release()

    def _shrink_working_set(self) -> None:
        kept = [member for member in self._members.values() if member.graph is not None]
        kept.sort(key=lambda member: self._usage.weight(member.shape))
        total = sum(member.graph.host_bytes for member in kept if member.graph is not None)
        for member in kept:
            if total <= self.graph_budget_bytes or member.graph is None:
                return
            total -= member.graph.host_bytes
            member.graph.release()
            member.graph = None

    # -- the end -----------------------------------------------------------------------------------------------------

    def forget(self, shape: Hashable) -> None:
        """Release what belongs to a shape alone; unknown ones are fine. Queued launches are still done."""
        member = self._members.pop(shape, None)
        self._usage.forget(shape)
        if member is None:
            return
        if member.graph is not None:
            member.graph.release()
        for loaded in self._of(member.kin):
            if loaded.shape == shape:
                loaded.shape = _NOWHERE
        last = self._classes.remove(shape)
        if last is not None or member.kin.topology is None:
            for loaded in self._of(member.kin):
                self._drop(loaded)
            member.kin.graph.release()
            self._usage.forget(member.kin)
            if last is not None:
                del self._kin[last]

    def release(self) -> None:
        """Forget every shape. Idempotent."""
        for shape in list(self._members):
            self.forget(shape)

    def account(self) -> StoreAccount:
        """What the shapes cost now. `all_resident` takes each shape's executable to be as large as its class's."""
        members = list(self._members.values())
        kins = {id(member.kin): member.kin for member in members}.values()
        graphs = [member.graph for member in members if member.graph is not None] + [kin.graph for kin in kins]
        return StoreAccount(
            shapes=len(members),
            classes=len(self._classes),
            alone=sum(kin.topology is None for kin in kins),
            executables=len(self._loaded),
            executable_bytes=sum(loaded.executable.nbytes for loaded in self._loaded.values()),
            record_bytes=sum(len(member.record) for member in members),
            base_bytes=sum(kin.topology.base.nbytes for kin in kins if kin.topology is not None),
            graphs=len(graphs),
            graph_bytes=sum(graph.host_bytes for graph in graphs),
            launches=self._counts.launches,
            switches=self._counts.switches,
            instantiations=self._counts.instantiations,
            evictions=self._counts.evictions,
            refused=self._counts.refused,
            all_resident=Estimate(
                nbytes=sum(member.kin.executable_bytes for member in members), measured=len(kins), of=len(members)
            ),
        )


class _Uncertain:
    """While an executable is changed; unless the block says how it ended, the executable is not used again."""

    def __init__(self, store: ExecutableStore, loaded: _Loaded) -> None:
        self._store = store
        self._loaded = loaded
        self.certain = False

    def __enter__(self) -> _Uncertain:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.certain:
            self._store._drop(self._loaded)


def _average(before: float | None, now: float) -> float:
    return float(now) if before is None else 0.8 * before + 0.2 * now
