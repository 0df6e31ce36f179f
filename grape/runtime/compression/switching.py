"""Brings a shape to an executable: one that has it loaded, one that is switched to it, or one of its own."""

from __future__ import annotations

from collections.abc import Sequence

from ..backends.executables import UpdatableGraph
from ..backends.protocol import Prepared
from .codec import Record
from .members import ExecutableGroup, Loaded, Member
from .resident_executables import ResidentExecutables, Uncertain, average


class Refusing:
    """The device refuses an update to this shape that it had accepted before."""


class Waiting:
    """It could be brought, for others would go; but they are more useful until more calls have missed it."""


def bring(resident: ResidentExecutables, member: Member) -> Loaded | Refusing | Waiting | None:
    """An executable that does the member's work; None where there is no room for one.

    A shape that has paid for as many switches as a new executable costs gets one of its own, where limits allow; what
    the host does while the device works costs nothing. One whose class has no executable, and for which others would
    have to go, waits until the calls that went without it have lost as much as making it costs.
    """
    group = member.group
    if group.topology is None:
        return _first(resident, member)
    loaded: Loaded | None = None
    if group.executables and member.paid_ns >= group.instantiate_ns:
        worth = resident.usage.weight(member.shape) * member.paid_ns
        if resident.may_have_another(group, worth_ns=worth):
            loaded = resident.make(group, worth_ns=worth)
        if loaded is not None:
            member.paid_ns = 0.0
    if loaded is None:
        loaded = resident.to_switch(member)
    if loaded is None:
        made = _first(resident, member)
        if not isinstance(made, Loaded) or made.member is member:
            return made
        loaded = made
    return loaded if _switch(resident, loaded, member) else Refusing()


def _first(resident: ResidentExecutables, member: Member) -> Loaded | Waiting | None:
    """An executable where the class has none. It does the work of the shape that founded the class."""
    saving, group = member.user.saving_ns, member.group
    if saving is not None and group.instantiate_ns and resident.leaving_for(group):
        if member.missed_ns < group.instantiate_ns:
            member.missed_ns += max(saving, 0.0)
            return Waiting()
        member.missed_ns = 0.0
    made = resident.make(group)
    if made is not None and (group.topology is None or member.founder):
        resident.load(made, member)
    return made


def _switch(resident: ResidentExecutables, loaded: Loaded, member: Member) -> bool:
    group, start = member.group, resident.clock_ns()
    touched = _union(loaded.touched, member.changed)
    whole = None if group.prefers_nodes(len(touched)) else member.whole
    sets = _prepared(loaded, member, touched) if whole is None else []
    with Uncertain(resident, loaded) as attempt:
        resident.load(loaded, None)
        loaded.touched = touched  # before the first write: an interrupt may follow any
        if whole is not None:
            done = update_whole(resident, loaded, group, whole)
        else:
            done = _issue(resident, loaded, member, sets)
        attempt.certain = done
    if done:
        loaded.touched = member.changed
        resident.load(loaded, member)
        if not loaded.executable.waits():  # else the device had work all the while, and nobody waited for the switch
            member.paid_ns += resident.clock_ns() - start
        resident.counts[group.owner].switches += 1
    return done


def update_whole(resident: ResidentExecutables, loaded: Loaded, group: ExecutableGroup, graph: UpdatableGraph) -> bool:
    """Give the executable all of a graph's parameters; False where the device refuses."""
    start = resident.clock_ns()
    done = loaded.executable.update_from(graph)
    if done:
        group.whole_ns = average(group.whole_ns, resident.clock_ns() - start)
    return done


def update_nodes(resident: ResidentExecutables, loaded: Loaded, member: Member) -> bool:
    """Write the nodes that differ from the member's; False where the device refuses."""
    return _issue(resident, loaded, member, _prepared(loaded, member, loaded.touched))


def prepare(loaded: Loaded, record: Record) -> Prepared:
    """The writes of the nodes that a record says, for every executable of the class."""
    return loaded.executable.prepare(sorted(record.changes().items()))


def _prepared(loaded: Loaded, member: Member, touched: frozenset[int]) -> list[Prepared]:
    """The member's own nodes, and the base's for others of `touched`. Nothing is written yet."""
    group = member.group
    assert group.topology is not None
    base, executable = group.topology.base, loaded.executable
    if member.prepared is None:
        member.prepared = prepare(loaded, Record(base, member.record))
    if touched is member.changed:
        return [member.prepared]
    others = sorted(touched - member.changed)
    for number in others:
        if number not in group.originals:
            group.originals[number] = executable.prepare([(number, base.nodes[number])])
    return [*[group.originals[number] for number in others], member.prepared]


def _issue(resident: ResidentExecutables, loaded: Loaded, member: Member, sets: Sequence[Prepared]) -> bool:
    start, group, count = resident.clock_ns(), member.group, len(loaded.touched)
    done = loaded.executable.update_prepared(sets, member.attachment)
    if done and count:
        group.nodes_ns = average(group.nodes_ns, (resident.clock_ns() - start) / count)
    return done


def _union(some: frozenset[int], others: frozenset[int]) -> frozenset[int]:
    """One of the two where it holds the other: shapes that take turns mostly change the same nodes."""
    if some is others or others <= some:
        return some
    return others if some <= others else some | others
