"""When this rank arrived at the collectives of a run, as the engine noted it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..model.times.ranks import Meeting
from .places import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """The last collectives of a run, with nanoseconds since the epoch; 0 where no clock told. `met`: there were."""

    meetings: tuple[Meeting, ...]
    at_ns: tuple[int, ...]
    met: int


def read(found: tuple[Sequence[tuple[str, int, int, int]], int], place_of: Callable[[int], Place]) -> Arrivals:
    """Of what `Session.arrivals` gave. A place that was not asked for is that of the same operator before it."""
    rows, met = found
    places: dict[str, Place] = {}
    meetings = []
    before = -1
    for operator, place, in_pass, _ in rows:
        if place >= 0:
            places[operator] = place_of(place)
        user, inner = places.get(operator, (None, None))
        meetings.append(Meeting(operator=operator, user=user, inner=inner, goes_on=in_pass != -1 and in_pass == before))
        before = in_pass
    return Arrivals(meetings=tuple(meetings), at_ns=tuple(row[3] for row in rows), met=met)
