"""Takes over the graph of a shape: into a class whose executables can do its work, else with one of its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ..backends.executables import UpdatableGraph
from .classes import Classes, TopologyClass
from .codec import Base, Record
from .members import Kin, Loaded, Member, User
from .residents import Residents, Uncertain
from .switching import prepare, update_nodes, update_whole

__all__ = ["Verify", "admit"]

Verify = Callable[[Callable[[], None]], bool]
"""Gets a launch, and says whether it does what the eager call does."""


def admit(
    residents: Residents,
    classes: Classes,
    kin_of: dict[TopologyClass, Kin],
    shape: Hashable,
    graph: UpdatableGraph,
    verify: Verify,
    *,
    owner: Hashable,
    user: User,
) -> Member | None:
    """The shape as a member, with an executable that did the right thing; None where it could not be had.

    An exception of `verify` propagates, and nothing is left behind.
    """
    kin = Kin(graph, None, owner)
    if graph.topology is None:
        return _alone(residents, shape, kin, verify, user)
    parameters = graph.parameters()
    for candidate in classes.candidates(graph.topology):
        member = Member(shape, kin_of[candidate], candidate.base.encode(parameters), graph.attachment, graph, user)
        if _joins(residents, member, graph, parameters, verify):
            classes.add(shape, candidate)
            return member
    made = _verified(residents, kin, verify)
    if made is None:
        return None
    kin.topology = classes.found(shape, graph.topology, Base(parameters))
    kin_of[kin.topology] = kin
    member = Member(shape, kin, kin.topology.base.encode(parameters), graph.attachment, None, user, founder=True)
    residents.load(made, member)
    return member


def _alone(residents: Residents, shape: Hashable, kin: Kin, verify: Verify, user: User) -> Member | None:
    loaded = _verified(residents, kin, verify)
    if loaded is None:
        return None
    member = Member(shape, kin, b"", None, None, user)
    residents.load(loaded, member)
    return member


def _verified(residents: Residents, kin: Kin, verify: Verify) -> Loaded | None:
    """An executable of a graph that is not known yet; None where it cannot be had or is wrong."""
    loaded = residents.make(kin)
    if loaded is None:
        return None
    verified = False
    try:
        verified = verify(loaded.executable.replay)
    finally:
        if not verified:
            residents.drop(loaded)
    return loaded if verified else None


def _joins(
    residents: Residents, member: Member, graph: UpdatableGraph, parameters: tuple[bytes, ...], verify: Verify
) -> bool:
    """True where an executable of the class took the shape and then did the right thing."""
    kin = member.kin
    assert kin.topology is not None
    loaded = residents.to_switch(member) or residents.make(kin)
    if loaded is None:
        return False
    record = Record(kin.topology.base, member.record)
    if record.nodes() != parameters:
        return False
    member.changed = kin.same(record.changed)
    with Uncertain(residents, loaded) as attempt:
        before, did = loaded.touched, loaded.member
        residents.load(loaded, None)
        loaded.touched = before | member.changed
        if not update_whole(residents, loaded, kin, graph):
            loaded.touched = before
            residents.load(loaded, did)
            attempt.certain = True
            return False
        # A second time from the record, prepared as later switches will write it.
        member.prepared = prepare(loaded, record)
        written = update_nodes(residents, loaded, member)
        accepted = written and verify(loaded.executable.replay)
        # One that took an update and did something else may do so again.
        attempt.certain = accepted or not written
    if accepted:
        loaded.touched = member.changed
        residents.load(loaded, member)
    return accepted
