"""Takes over the graph of a shape: into a class whose executables can do its work, else with one of its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ..backends.executables import UpdatableGraph
from .classes import Classes, TopologyClass
from .codec import Base, Record
from .members import ExecutableGroup, Loaded, Member, User
from .resident_executables import ResidentExecutables, Uncertain
from .switching import prepare, update_nodes, update_whole

Verify = Callable[[Callable[[], None]], bool]
"""Gets a launch, and says whether it does what the eager call does."""


def admit(
    resident: ResidentExecutables,
    classes: Classes,
    group_of: dict[TopologyClass, ExecutableGroup],
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
    group = ExecutableGroup(graph, None, owner)
    if graph.topology is None:
        return _alone(resident, shape, group, verify, user)
    parameters = graph.parameters()
    for candidate in classes.candidates(graph.topology):
        member = Member(shape, group_of[candidate], candidate.base.encode(parameters), graph.attachment, graph, user)
        if _joins(resident, member, graph, parameters, verify):
            classes.add(shape, candidate)
            return member
    made = _verified(resident, group, verify)
    if made is None:
        return None
    group.topology = classes.found(shape, graph.topology, Base(parameters))
    group_of[group.topology] = group
    member = Member(shape, group, group.topology.base.encode(parameters), graph.attachment, None, user, founder=True)
    resident.load(made, member)
    return member


def _alone(
    resident: ResidentExecutables, shape: Hashable, group: ExecutableGroup, verify: Verify, user: User
) -> Member | None:
    loaded = _verified(resident, group, verify)
    if loaded is None:
        return None
    member = Member(shape, group, b"", None, None, user)
    resident.load(loaded, member)
    return member


def _verified(resident: ResidentExecutables, group: ExecutableGroup, verify: Verify) -> Loaded | None:
    """An executable of a graph that is not known yet; None where it cannot be had or is wrong."""
    loaded = resident.make(group)
    if loaded is None:
        return None
    verified = False
    try:
        verified = verify(loaded.executable.replay)
    finally:
        if not verified:
            resident.drop(loaded)
    return loaded if verified else None


def _joins(
    resident: ResidentExecutables, member: Member, graph: UpdatableGraph, parameters: tuple[bytes, ...], verify: Verify
) -> bool:
    """True where an executable of the class took the shape and then did the right thing."""
    group = member.group
    assert group.topology is not None
    loaded = resident.to_switch(member) or resident.make(group)
    if loaded is None:
        return False
    record = Record(group.topology.base, member.record)
    if record.nodes() != parameters:
        return False
    member.changed = group.same(record.changed)
    with Uncertain(resident, loaded) as attempt:
        before, did = loaded.touched, loaded.member
        resident.load(loaded, None)
        loaded.touched = before | member.changed
        if not update_whole(resident, loaded, group, graph):
            loaded.touched = before
            resident.load(loaded, did)
            attempt.certain = True
            return False
        # A second time from the record, prepared as later switches will write it.
        member.prepared = prepare(loaded, record)
        written = update_nodes(resident, loaded, member)
        accepted = written and verify(loaded.executable.replay)
        # One that took an update and did something else may do so again.
        attempt.certain = accepted or not written
    if accepted:
        loaded.touched = member.changed
        resident.load(loaded, member)
    return accepted
