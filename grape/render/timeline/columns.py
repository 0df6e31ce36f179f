"""A timeline as binary columns: what the view draws 50,000 events from without one object per event.

Events are sorted by row and then by start. The events of one row do not overlap, so that a viewer finds the visible
ones by bisection.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from ...model import Event, Position, Timeline
from ...model.times.timeline import thinned
from ..summary import place, shared_file
from ..units import clean

BYTES_PER_EVENT = 24
"""Start, duration (uint32, in ticks), kind, place, correlation (int32), bytes moved (float32)."""

_MOST_ROWS = 12
"""Of one lane. What nests deeper is left out, and counted."""

_LARGEST = 2**31 - 1

_START, _END = attrgetter("start_ns"), attrgetter("end_ns")


@dataclass(slots=True)
class Strings:
    """The tables that all timelines of a view share. A kind is (name, category); a place (the person's line, the
    line that issued it), each as (file, line, function) or None.
    """

    kinds: dict[tuple[str, str], int] = field(default_factory=dict)
    places: dict[tuple[Position | None, Position | None], int] = field(default_factory=dict)
    _known: dict[tuple[int, int], tuple[int, Event]] = field(default_factory=dict)

    def kinds_of(self, events: Iterable[Event]) -> list[int]:
        known, numbers = self.kinds, []
        for event in events:
            key = (event.name, event.category)
            number = known.get(key)
            if number is None:
                number = known[key] = len(known)
            numbers.append(number)
        return numbers

    def places_of(self, events: Iterable[Event]) -> list[int]:
        """-1 where nothing is known."""
        known, numbers = self._known, []
        for event in events:
            position, inner = event.position, event.inner
            if position is None and inner is None:
                numbers.append(-1)
                continue
            # Events of one line share its position: comparing positions is what packing would spend its time on. The
            # event is kept so that nothing else gets the identities.
            key = (id(position), id(inner))
            found = known.get(key)
            if found is None:
                found = self.places.setdefault((position, inner), len(self.places)), event
                known[key] = found
            numbers.append(found[0])
        return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the picture. `first` and `count` are places in the columns; `depth` counts from 0 within a lane."""

    label: str
    lane: str
    depth: int
    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """`blob` holds the six columns one after the other, little-endian. `total` counts the events that were recorded,
    `count` those that are here; times are in ticks of `tick_ns` nanoseconds. The picture ends at `end_ns`.
    """

    blob: bytes
    rows: tuple[Row, ...]
    count: int
    total: int
    tick_ns: int
    end_ns: int


def pack(timeline: Timeline, strings: Strings, *, limit: int) -> Columns:
    """`timeline` as columns, at most `limit` of its events. Lanes in the order lines, host, launches, device."""
    events, end_ns = thinned(timeline.events, timeline.wall_ns, limit)
    tick_ns = max(1, -(-max(1, end_ns) // _LARGEST))
    starts, durations = array("I"), array("I")
    kinds, places, correlations = array("i"), array("i"), array("i")
    sizes = array("f")
    rows: list[Row] = []
    count = 0
    for label, lane, items in _lanes(events):
        for depth, track in enumerate(_tracks(items)[:_MOST_ROWS]):
            rows.append(Row(label=label, lane=lane, depth=depth, first=len(starts), count=len(track)))
            count += len(track) if lane != "lines" else 0
            starts.extend([event.start_ns // tick_ns for event in track])
            durations.extend([max(0, event.end_ns - event.start_ns) // tick_ns for event in track])
            kinds.extend(strings.kinds_of(track))
            places.extend(strings.places_of(track))
            correlations.extend([event.correlation & _LARGEST for event in track])
            sizes.extend([event.bytes for event in track])
    columns: tuple[array[int] | array[float], ...] = (starts, durations, kinds, places, correlations, sizes)
    if sys.byteorder == "big":
        for column in columns:
            column.byteswap()
    return Columns(
        blob=b"".join(column.tobytes() for column in columns),
        rows=tuple(rows),
        count=count,
        total=len(timeline.events) + timeline.dropped,
        tick_ns=tick_ns,
        end_ns=end_ns,
    )


def _lanes(events: Iterable[Event]) -> Iterator[tuple[str, str, list[Event]]]:
    """(label, lane, events) from the top of the picture to its bottom."""
    host: dict[int, list[Event]] = {}
    launches: dict[int, list[Event]] = {}
    streams: dict[int, list[Event]] = {}
    marks: dict[int, list[Event]] = {}
    for event in events:
        if event.lane == "host":
            host.setdefault(event.thread, []).append(event)
        elif event.lane == "launch":
            launches.setdefault(event.thread, []).append(event)
        else:
            (marks if event.category == "annotation" else streams).setdefault(event.stream, []).append(event)
    for label, known, lane in (("operators", host, "host"), ("launches", launches, "launch")):
        for ordinal, thread in enumerate(sorted(known), start=1):
            if lane == "host":
                lines = list(_lines(known[thread]))
                if lines:
                    yield "lines", "lines", lines
            yield label if len(known) == 1 else f"{label}, thread {ordinal}", lane, known[thread]
    for stream in sorted(marks):
        yield f"marks, stream {stream}", "marks", marks[stream]
    for stream in sorted(streams):
        yield f"stream {stream}", "device", streams[stream]


def _lines(events: Iterable[Event]) -> Iterator[Event]:
    """One span for each run of operators that one line of the person's code issued, and one for the function that
    issued them where that is another; both are derived from the operators, so that they cost no recording.
    """
    users: list[_Run] = []
    functions: list[_Run] = []
    reach = -1
    for event in events:
        if event.category != "operator" or event.start_ns < reach:
            continue
        before, reach = reach, event.end_ns
        at, inner = event.position, event.inner
        if at is not None:
            _extend(users, before, event, None)
            if inner is not None and inner.function != at.function:
                _extend(functions, before, event, inner)
    spans = [run.event(_line_name(at)) for run in users if (at := run.first.position)]
    spans += [run.event(run.inner.function) for run in functions if run.inner]
    spans.sort(key=lambda e: (e.start_ns, -e.end_ns))
    yield from spans


def _line_name(at: Position) -> str:
    """``decode, line 12``; ``In[4], line 5`` outside of functions."""
    return place(at.file, at.line) if at.function == "<module>" else f"{at.function}, line {at.line}"


@dataclass(slots=True)
class _Run:
    """Operators of one line that follow each other; of one function where `inner` is the line that it begins with."""

    first: Event
    end_ns: int
    inner: Position | None

    def event(self, name: str) -> Event:
        return Event(
            name=name,
            lane="host",
            category="python",
            start_ns=self.first.start_ns,
            end_ns=self.end_ns,
            thread=self.first.thread,
            position=self.first.position,
            inner=self.inner,
        )


def _extend(runs: list[_Run], before_ns: int, event: Event, inner: Position | None) -> None:
    """Lengthen the last run where it ended with the operator before and is of the same line, else begin another."""
    last = runs[-1] if runs else None
    if last is not None and last.end_ns == before_ns and _same(last.first.position, event.position):
        mine, theirs = (inner.function if inner else None), (last.inner.function if last.inner else None)
        if mine == theirs:
            last.end_ns = event.end_ns
            return
    runs.append(_Run(first=event, end_ns=event.end_ns, inner=inner))


def _same(one: Position | None, other: Position | None) -> bool:
    """Events of one line nearly always share its position, and to compare what is in it takes long."""
    return one is other or one == other


def _tracks(events: Iterable[Event]) -> list[list[Event]]:
    """The events in as few rows as it takes for none to overlap another of its row; a caller above what it calls."""
    tracks: list[list[Event]] = []
    ends: list[int] = []
    for event in sorted(sorted(events, key=_END, reverse=True), key=_START):
        start_ns = event.start_ns
        for row, end_ns in enumerate(ends):
            if end_ns <= start_ns:
                tracks[row].append(event)
                ends[row] = event.end_ns
                break
        else:
            tracks.append([event])
            ends.append(event.end_ns)
    return tracks


def text_tables(strings: Strings) -> tuple[list[list[str]], list[list[list[object] | None]]]:
    """Kinds and places as plain values, in the order of their numbers."""
    kinds = [[clean(name), category] for name, category in strings.kinds]
    places: list[list[list[object] | None]] = [[_plain(user), _plain(inner)] for user, inner in strings.places]
    return kinds, places


def _plain(position: Position | None) -> list[object] | None:
    return None if position is None else [shared_file(position.file), position.line, clean(position.function)]
