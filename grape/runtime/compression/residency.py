"""Which executables stay on the device: those whose absence would cost the most, within a number and a budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """At most so many executables of one owner, of so many bytes in all on the device; None: bytes are not limited.

    An owner whose shapes are of more classes than that may have one executable for each, while all on the device take
    no more than `class_bytes`: a class without one has to make it before its next call.
    """

    executables: int
    nbytes: int | None
    class_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """An executable. `benefit_ns`: recent calls times what each would have cost without it, in nanoseconds.

    `group` is its class: others of it can do its work after a switch.
    """

    number: int
    nbytes: int
    benefit_ns: float
    owner: Hashable = None
    group: Hashable = None


class Usage:
    """Calls per key, each counting half after `half_life` further calls: what was hot long ago is not hot.

    Not every weight fades at each call, but what a call adds grows: so a weight is one product.
    """

    _FADED = 512.0
    """After so many half-lives the weights are written anew, before what is added gets too large for a float."""

    def __init__(self, half_life: int = 1024) -> None:
        self._half_life = half_life
        self.calls = 0
        """So far, of all keys."""
        self._age, self._fade = 0.0, 1.0
        self._weights: dict[Hashable, float] = {}

    def touch(self, *keys: Hashable, times: int = 1) -> None:
        """Calls that count for all these keys."""
        self.calls += times
        age = self._age + times / self._half_life
        if age > self._FADED:
            fade = float(0.5**age)
            self._weights, age = {key: weight * fade for key, weight in self._weights.items()}, 0.0
        self._age, self._fade = age, float(0.5**age)
        for key in keys:
            self._weights[key] = self._weights.get(key, 0.0) + times / self._fade

    def weight(self, key: Hashable) -> float:
        return self._weights.get(key, 0.0) * self._fade

    def forget(self, key: Hashable) -> None:
        self._weights.pop(key, None)


def evictions(
    resident: Sequence[Resident],
    limits: Limits,
    *,
    nbytes: int = 0,
    count: int = 0,
    owner: Hashable = None,
    group: Hashable = None,
    worth_ns: float | None = None,
) -> tuple[int, ...] | None:
    """Whom to evict so that `count` more executables of `owner` and `group`, of `nbytes` in all, fit; None if that is
    impossible.

    The least useful goes first: of the owner's by benefit where those are too many, of all by benefit per byte where
    they are too large. With `worth_ns` the evicted ones together must be worth less.
    """
    remaining = {resident.number: resident for resident in resident}
    used = sum(resident.nbytes for resident in resident)
    gone: list[Resident] = []
    while True:
        owned = [resident for resident in remaining.values() if resident.owner == owner]
        too_large = limits.nbytes is not None and used + nbytes > limits.nbytes
        crowd = list(remaining.values()) if too_large else _crowd(owned, limits, used + nbytes, count, group)
        if crowd is None:
            break
        if not crowd:
            return None
        least = min(crowd, key=_usefulness_per_byte if too_large else _usefulness)
        gone.append(remaining.pop(least.number))
        used -= least.nbytes
    if worth_ns is not None and gone and sum(resident.benefit_ns for resident in gone) >= worth_ns:
        return None
    return tuple(resident.number for resident in gone)


def _crowd(
    owned: Sequence[Resident], limits: Limits, nbytes: int, count: int, group: Hashable
) -> Sequence[Resident] | None:
    """Of whom one must go, because an owner has too many; None where it has not."""
    if len(owned) + count <= limits.executables:
        return None
    groups = Counter(resident.group for resident in owned)
    one_each = count == 0 or (count == 1 and group not in groups)
    if not (one_each and limits.class_bytes) or nbytes > limits.class_bytes:
        return owned
    return [resident for resident in owned if groups[resident.group] > 1] or None


def _usefulness(resident: Resident) -> tuple[float, int]:
    return resident.benefit_ns, resident.number


def _usefulness_per_byte(resident: Resident) -> tuple[float, int]:
    return resident.benefit_ns / max(resident.nbytes, 1), resident.number
