"""Brings a shape to an executable: one that has it loaded, one that is switched to it, or one of its own."""

from __future__ import annotations

from ..backends.protocol import UpdatableGraph
from .codec import Record
from .members import Kin, Loaded, Member
from .residents import Residents, Uncertain, average

__all__ = ["Refusing", "Waiting", "bring", "update_nodes", "update_whole"]


class Refusing:
    """The device refuses an update to this shape that it had accepted before."""


class Waiting:
    """It could be brought, for others would go; but they are more useful until more calls have missed it."""


def bring(residents: Residents, member: Member) -> Loaded | Refusing | Waiting | None:
    """An executable that does the member's work; None where there is no room for one.

    A shape that has paid for as many switches as a new executable costs gets one of its own, where limits allow. One
    whose class has no executable, and for which others would have to go, waits until the calls that went without it
    have lost as much as making it costs.
    """
    kin = member.kin
    if kin.topology is None:
        return _first(residents, member)
    loaded: Loaded | None = None
    if residents.of(kin) and member.paid_ns >= kin.instantiate_ns:
        worth = residents.usage.weight(member.shape) * member.paid_ns
        leaving = residents.leaving_for(kin, worth_ns=worth)
        # One of its own class need not go for it: that one can be switched.
        if leaving is not None and all(residents.all[number].kin is not kin for number in leaving):
            loaded = residents.make(kin, worth_ns=worth)
        if loaded is not None:
            member.paid_ns = 0.0
    if loaded is None:
        group = residents.of(kin)
        if not group:
            made = _first(residents, member)
            if not isinstance(made, Loaded) or made.member is member:
                return made
            loaded = made
        else:
            loaded = min(group, key=residents.benefit_ns)
    return loaded if _switch(residents, loaded, member) else Refusing()


def _first(residents: Residents, member: Member) -> Loaded | Waiting | None:
    """An executable where the class has none. It does the work of the shape that founded the class."""
    saving, kin = member.user.saving_ns, member.kin
    if saving is not None and kin.instantiate_ns and residents.leaving_for(kin):
        if member.missed_ns < kin.instantiate_ns:
            member.missed_ns += max(saving, 0.0)
            return Waiting()
        member.missed_ns = 0.0
    made = residents.make(kin)
    if made is not None and (kin.topology is None or member.founder):
        residents.load(made, member)
    return made


def _switch(residents: Residents, loaded: Loaded, member: Member) -> bool:
    assert member.kin.topology is not None
    start = residents.clock_ns()
    record = Record(member.kin.topology.base, member.record)
    changes = len(record.changed | loaded.touched)
    whole_ns, nodes_ns = member.kin.whole_ns, member.kin.nodes_ns
    cheaper = whole_ns is None or nodes_ns is None or whole_ns <= nodes_ns * max(changes, 1)
    whole = member.whole if cheaper else None
    with Uncertain(residents, loaded) as attempt:
        residents.load(loaded, None)
        loaded.touched |= record.changed  # before the first write: an interrupt may follow any
        if whole is not None:
            done = update_whole(residents, loaded, member.kin, whole)
        else:
            done = update_nodes(residents, loaded, member, record)
        attempt.certain = done
    if done:
        loaded.touched = record.changed
        residents.load(loaded, member)
        member.paid_ns += residents.clock_ns() - start
        residents.counts[member.kin.owner].switches += 1
    return done


def update_whole(residents: Residents, loaded: Loaded, kin: Kin, graph: UpdatableGraph) -> bool:
    """Give the executable all of a graph's parameters; False where the device refuses."""
    start = residents.clock_ns()
    done = loaded.executable.update_from(graph)
    if done:
        kin.whole_ns = average(kin.whole_ns, residents.clock_ns() - start)
    return done


def update_nodes(residents: Residents, loaded: Loaded, member: Member, record: Record) -> bool:
    """Write the member's nodes, from its record and from the base; False where the device refuses."""
    assert member.kin.topology is not None
    base = member.kin.topology.base
    start = residents.clock_ns()
    written = record.changes()
    changes = [(number, written.get(number, base.nodes[number])) for number in sorted(record.changed | loaded.touched)]
    done = loaded.executable.update_nodes(changes, member.attachment)
    if done and changes:
        member.kin.nodes_ns = average(member.kin.nodes_ns, (residents.clock_ns() - start) / len(changes))
    return done
