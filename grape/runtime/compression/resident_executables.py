"""The executables on the device: making them, within limits, and giving them back."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import count

import torch

from ...originals import perf_counter_ns
from .members import Counts, ExecutableGroup, Loaded, Member
from .residency import Limits, Resident, Usage, evictions

ABOUT_AS_OFTEN = 4.0
"""Weights of shapes that come in turn differ by a factor of 2, since calls count half after `Usage`'s half-life."""


@dataclass(slots=True, eq=False)
class ResidentExecutables:
    """Every executable of a store, and which shape each of them does. One exists while its group has it."""

    limits: Limits
    clock_ns: Callable[[], int] = perf_counter_ns
    usage: Usage = field(default_factory=Usage)
    counts: defaultdict[Hashable, Counts] = field(default_factory=lambda: defaultdict(Counts))
    """By owner."""
    all: dict[int, Loaded] = field(default_factory=dict)
    device_full: bool = False
    """True where the device had no memory for the last executable that could not be had."""
    _numbers: count[int] = field(default_factory=count)

    def least_useful(self, candidates: Iterable[Loaded]) -> Loaded | None:
        """The first one of the least `benefit_ns`. Every switch asks for it, and most of a group cost the same."""
        least: Loaded | None = None
        lowest, cost, known, touched = math.inf, 0.0, None, None
        for loaded in list(candidates):
            group, member = loaded.group, loaded.member
            if len(group.executables) == 1 or member is None:
                benefit = self.benefit_ns(loaded)
            else:
                if known is not group or touched is not loaded.touched:
                    known, touched = group, loaded.touched
                    cost = group.switch_ns(len(touched))
                if member.user.launches != member.counted:
                    self.note(member)
                benefit = self.usage.weight(member.shape) * cost
            if benefit < lowest:
                least, lowest = loaded, benefit
        return least

    def to_switch(self, member: Member) -> Loaded | None:
        """Which executable of its class does this shape's work next: the one that was switched last, where that one's
        shape comes about as often as that of the least useful one, which was called since this one was.

        Shapes that come in turn (a cache that grows) come back in the same order, and the one that came last is the
        farthest away: Belady, "A study of replacement algorithms" (1966). The others keep what they have. A shape that
        comes back while an executable waits for one that does not come at all has left the turn.
        """
        group = member.group
        least = self.least_useful(group.executables.values())
        latest = group.executables.get(group.latest)
        if least is None or latest is None or least.member is None or least.member.used_at < member.used_at:
            return least
        return least if self.benefit_ns(latest) > ABOUT_AS_OFTEN * self.benefit_ns(least) else latest

    def load(self, loaded: Loaded, member: Member | None) -> None:
        """Say whose work the executable does from now on; who it did it for before has to ask again."""
        before = loaded.member
        if before is not None and before is not member:
            self.note(before)
            before.loaded = None
            before.user.moved(None)
        loaded.member = member
        if member is not None:
            loaded.group.latest = loaded.number
            member.loaded = loaded
            member.user.moved(loaded.executable.replay)

    def note(self, member: Member) -> None:
        """Count the launches of a shape since the last time; those of a loaded shape pass the store by."""
        launches = member.user.launches
        if launches > member.counted:
            self.usage.touch(member.shape, member.group, times=launches - member.counted)
            member.counted, member.used_at = launches, self.usage.calls

    def make(self, group: ExecutableGroup, *, worth_ns: float | None = None) -> Loaded | None:
        """A further executable, for which less useful ones may have to go; None where there is no room.

        Its content is that of `group.graph`. With `worth_ns` only executables that are worth less in all go for it.
        """
        room = self.leaving_for(group, worth_ns=worth_ns)
        self.device_full = False
        if room is None:
            return None
        for number in room:
            self.evict(self.all[number])
        number, start = next(self._numbers), self.clock_ns()
        try:
            executable = group.graph.instantiate()
        except torch.OutOfMemoryError:
            if worth_ns is not None:
                return None
            for loaded in list(self.all.values()):
                self.evict(loaded)
            try:
                executable = group.graph.instantiate()
            except torch.OutOfMemoryError:
                self.device_full = True
                return None
        try:
            group.instantiate_ns = average(group.instantiate_ns or None, self.clock_ns() - start)
            group.executable_bytes = max(group.executable_bytes, executable.nbytes)
            self.counts[group.owner].instantiations += 1
            # Its size is known only now.
            room = self._leaving(group, executable.nbytes)
            if room is None:
                return None
            for other in room:
                self.evict(self.all[other])
            self.all[number] = group.executables[number] = Loaded(number, executable, group)
        finally:
            if number not in group.executables:
                self.all.pop(number, None)
                executable.release()
        return self.all[number]

    def leaving_for(self, group: ExecutableGroup, *, worth_ns: float | None = None) -> tuple[int, ...] | None:
        """Which executables would go for one more of `group`; None where it would not fit."""
        return self._leaving(group, group.executable_bytes, worth_ns)

    def _leaving(self, group: ExecutableGroup, nbytes: int, worth_ns: float | None = None) -> tuple[int, ...] | None:
        return evictions(
            self._resident(), self.limits, nbytes=nbytes, count=1, owner=group.owner, group=group, worth_ns=worth_ns
        )

    def may_have_another(self, group: ExecutableGroup, *, worth_ns: float) -> bool:
        """True where one more fits, for which none of its own class would go: that one can be switched instead."""
        owned = [one for one in self.all.values() if one.group.owner == group.owner]
        over = len(owned) + 1 - self.limits.executables
        if over > 1:  # beyond the number each is all that its class has
            return False
        if self.limits.nbytes is None:  # what `leaving_for` would find, without asking it
            if over <= 0:
                return True
            if len(owned) == len(group.executables):
                return False
            least = self.least_useful(owned)
            return least is not None and least.group is not group and self.benefit_ns(least) < worth_ns
        leaving = self.leaving_for(group, worth_ns=worth_ns)
        return leaving is not None and all(self.all[number].group is not group for number in leaving)

    def apply_limits(self) -> None:
        """Evict until `limits` hold."""
        for owner in {loaded.group.owner for loaded in self.all.values()}:
            leaving = evictions(self._resident(), self.limits, owner=owner)
            # None: what else counts is beyond the limit already, and no executable may stay.
            for number in list(self.all) if leaving is None else leaving:
                self.evict(self.all[number])

    def evict(self, loaded: Loaded) -> None:
        self.counts[loaded.group.owner].evictions += 1
        self.drop(loaded)

    def drop(self, loaded: Loaded) -> None:
        if loaded.number in loaded.group.executables:
            self.load(loaded, None)
            loaded.executable.release()
            self.all.pop(loaded.number, None)
            loaded.group.executables.pop(loaded.number, None)

    def benefit_ns(self, loaded: Loaded) -> float:
        """Recent calls times what each would cost without this executable: a switch, or, for the last, making it."""
        group, member = loaded.group, loaded.member
        if member is not None:
            self.note(member)
        if len(group.executables) == 1:
            return self.usage.weight(group) * group.instantiate_ns
        return self.usage.weight(member.shape) * group.switch_ns(len(loaded.touched)) if member is not None else 0.0

    def _resident(self) -> list[Resident]:
        return [
            Resident(
                number=one.number,
                nbytes=one.executable.nbytes,
                benefit_ns=self.benefit_ns(one),
                owner=one.group.owner,
                group=one.group,
            )
            for one in self.all.values()
        ]


class Uncertain:
    """While an executable is changed; unless the block says how it ended, the executable is not used again."""

    def __init__(self, resident: ResidentExecutables, loaded: Loaded) -> None:
        self._resident = resident
        self._loaded = loaded
        self.certain = False

    def __enter__(self) -> Uncertain:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.certain:
            self._resident.drop(self._loaded)


def average(before: float | None, now: float) -> float:
    """A running one, in which older values fade."""
    return float(now) if before is None else 0.8 * before + 0.2 * now
