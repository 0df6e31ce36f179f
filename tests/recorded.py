"""The events of a run that was recorded on an H200 (docs/data), as many of them as are asked for."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

from grape.model import CellEvidence, Event, Position, RegionEvidence, Timeline
from grape.render.html.page import read_view
from grape.render.timeline.columns import BYTES_PER_EVENT
from grape.render.timeline.view import View

FILE = Path(__file__).parents[1] / "docs" / "data" / "gpt2-decode.json"


def recorded_view() -> View:
    return read_view(FILE.read_text(encoding="utf-8"), FILE.name)


def recorded_cell(events: int) -> CellEvidence:
    """A cell with one region, whose decode step is repeated until both of its timelines have that many events."""
    view = recorded_view()
    before, after = (_repeated(view, spec, events) for spec in view.data["timelines"])
    at = Position(file="In[5]", line=5, function="<module>")
    region = RegionEvidence(
        name="step", at=at, end_line=5, outcome="replayed", refused=None, calls=1, replays=1, before=before, after=after
    )
    source = view.data["sources"]["In[5]"]
    return CellEvidence(
        file="In[5]", source=source, device="H200", backend="cuda", wall_ms=1.0, regions=(region,), cuda=True
    )


def _repeated(view: View, spec: dict[str, Any], wanted: int) -> Timeline:
    once = sorted(_events(view, spec), key=lambda event: (event.start_ns, -event.end_ns))
    found: list[Event] = []
    times = -(-wanted // len(once))
    for number in range(times):
        later_ns = number * spec["wall_ns"]
        found += [
            replace(
                event,
                start_ns=event.start_ns + later_ns,
                end_ns=event.end_ns + later_ns,
                correlation=event.correlation + 1_000_000 * number if event.correlation else 0,
            )
            for event in once
        ]
    return Timeline(events=tuple(found[:wanted]), wall_ns=times * spec["wall_ns"], calls=times)


def _events(view: View, spec: dict[str, Any]) -> list[Event]:
    """One timeline's events: what the columns hold, but for spans of lines, which follow from operators."""
    count, offset = spec["events"], spec["offset"]
    width = BYTES_PER_EVENT // 6
    columns: list[array[Any]] = []
    for number, code in enumerate("IIiiif"):
        start = offset + width * count * number
        columns.append(array(code, view.blob[start : start + width * count]))
    places = [(_position(user), _position(inner)) for user, inner in view.data["places"]]
    found = []
    for row in spec["rows"]:
        for index in range(row["first"], row["first"] + row["count"]) if row["lane"] != "lines" else ():
            start, duration, kind, place, correlation, size = (column[index] for column in columns)
            name, category = view.data["kinds"][kind]
            position, inner = places[place] if place >= 0 else (None, None)
            found.append(
                Event(
                    name=name,
                    lane=row["lane"],
                    category=category,
                    start_ns=start * spec["tick_ns"],
                    end_ns=(start + duration) * spec["tick_ns"],
                    stream=7 if row["lane"] == "device" else -1,
                    correlation=correlation,
                    bytes=int(size),
                    position=position,
                    inner=inner,
                )
            )
    return found


def _position(known: list[Any] | None) -> Position | None:
    return None if known is None else Position(file=known[0], line=known[1], function=known[2])
