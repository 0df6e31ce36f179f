"""Differences between two reports: pure functions of their `to_dict()`, as `--json` writes it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from .units import duration, one_line, pair, plural, ratio, waited_pair

Json = Mapping[str, Any]

_ALIKE = re.compile(r"; (?:in `[^`]*`, )?and alike in ")

_ONE_RUN_VARIES = 0.1
"""By less than this share two runs of one cell may differ with nothing changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One line of a comparison. `kind` is "better", "worse", "same" or "note"."""

    kind: str
    text: str


def reports_of(content: object, name: str) -> tuple[Json, ...]:
    """The reports in a file that ``--json`` wrote, of one cell or of several. Raises `UsageError`."""
    cells = content.get("cells") if isinstance(content, Mapping) and "cells" in content else [content]
    if not isinstance(cells, list) or not cells:
        raise UsageError(f"'{name}' holds no report of Grape; write one with --json")
    for cell in cells:
        if not isinstance(cell, Mapping) or not {"version", "verdict", "regions", "findings", "cell"} <= set(cell):
            raise UsageError(f"'{name}' holds no report of Grape; write one with --json")
        if cell["version"] != 1:
            raise UsageError(f"'{name}' has version {cell['version']!r} of the report; this Grape reads version 1")
    return tuple(cells)


@contextmanager
def damaged(name: str) -> Iterator[None]:
    """Turns what a damaged report leads to inside into a `UsageError` that names its file."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise UsageError(f"'{name}' is a damaged report: {why}") from None


def compare_reports(first: Sequence[Json], second: Sequence[Json]) -> tuple[Change, ...]:
    """The lines about what is different in `second`. Cells are paired in their order, regions by their names within a
    cell.
    """
    changes: list[Change] = []
    if len(first) != len(second):
        changes.append(Change(kind="note", text=f"{plural(len(first), 'cell')} measured, now {len(second)}"))
    for number, (old, new) in enumerate(zip(first, second, strict=False), start=1):
        where = f"cell {number}, " if max(len(first), len(second)) > 1 else ""
        changes += _cell(old, new, where)
    return tuple(changes)


def _cell(old: Json, new: Json, where: str) -> Iterator[Change]:
    if old["device"] != new["device"]:
        text = f"{where}another device: {old['device']}, now {new['device']}; times do not compare"
        yield Change(kind="note", text=text)
    else:
        yield from _waited(old["cell"], new["cell"], where)
    before = {region["name"]: region for region in old["regions"]}
    after = {region["name"]: region for region in new["regions"]}
    for name in [*before, *(name for name in after if name not in before)]:
        label = f"{where}{one_line(name, 60)}"
        if name not in after:
            yield Change(kind="note", text=f"{label}: no region any more")
        elif name not in before:
            yield Change(kind="note", text=f"{label}: a new region, {_state(after[name])}")
        else:
            timed, claimed = old["device"] == new["device"], not _on_cpu(old["cell"], new["cell"])
            yield from _region(before[name], after[name], label, timed=timed, claimed=claimed)
    yield from _findings(old["findings"], new["findings"], where)


def _waited(old: Json, new: Json, where: str) -> Iterator[Change]:
    """The line about the time of the whole cell, where it clearly changed: each was measured once. Of two runs that
    nothing served none is better, nor is on a CPU: nobody may take for Grape's what the machine did, or its own
    looking.
    """
    before, after = old.get("wall_ms"), new.get("wall_ms")
    if not before or not after or abs(after - before) <= _ONE_RUN_VARIES * before:
        return
    plainly = "" if _is_served(old) or _is_served(new) else ", as written both times"
    if plainly or _on_cpu(old, new):
        own = [(_own_ms(one), wall, which) for one, wall, which in ((old, before, "first"), (new, after, "second"))]
        took = [f"{duration(ms)} of the {which}" for ms, wall, which in own if ms > _ONE_RUN_VARIES * wall]
        looked = f"; Grape itself took {' and '.join(took)}" if took else ""
        text = f"{where}the cell: {waited_pair(before, after)}{plainly}{looked}"
        yield Change(kind="note", text=text)
        return
    by = ratio(max(before, after) / min(before, after))
    word, kind = ("faster", "better") if after < before else ("slower", "worse")
    yield Change(kind=kind, text=f"{where}the cell: {by} {word} ({waited_pair(before, after)})")


def _is_served(cell: Json) -> bool:
    """True where graphs or streams served some of it, and where that is not known."""
    served = cell.get("served")
    return served is None or any(served[by] for by in ("streams", "regions"))


def _on_cpu(old: Json, new: Json) -> bool:
    """True of the reference of graphs, which makes nothing faster."""
    return old.get("backend") == new.get("backend") == "tape"


def _own_ms(cell: Json) -> float:
    return float(sum((cell.get("own_ms") or {}).values()))


def _region(old: Json, new: Json, label: str, *, timed: bool, claimed: bool) -> Iterator[Change]:
    if (old["outcome"], old["reason"]) != (new["outcome"], new["reason"]):
        kind = "better" if new["outcome"] == "replayed" else "worse" if old["outcome"] == "replayed" else "note"
        yield Change(kind=kind, text=f"{label}: {_state(old)}, now {_state(new)}")
    one, other = _time(old), _time(new)
    if not timed or one is None or other is None:
        return
    times = pair(one["median"], other["median"])
    if _apart(one, other) and not claimed:
        yield Change(kind="note", text=f"{label}: {times} per call")
    elif _apart(one, other):
        faster = other["median"] < one["median"]
        by = ratio(max(one["median"], other["median"]) / max(min(one["median"], other["median"]), 1e-12))
        kind = "better" if faster else "worse"
        yield Change(kind=kind, text=f"{label}: {by} {'faster' if faster else 'slower'} per call ({times})")
    else:
        yield Change(kind="same", text=f"{label}: no significant change per call ({times})")


def _state(region: Json) -> str:
    reason = f" ({region['reason']})" if region["reason"] else ""
    return f"{region['outcome']}{reason}"


def _time(region: Json) -> Json | None:
    """The time of a call as the region runs: replayed where it is replayed, else eager."""
    found: Json | None = (region["after_ms"] or region["before_ms"]) if region["outcome"] == "replayed" else None
    return found or region["before_ms"]


def _apart(one: Json, other: Json) -> bool:
    """True where the interquartile ranges, taken to be centred on the medians, do not overlap."""
    return bool(abs(one["median"] - other["median"]) > (one["iqr"] + other["iqr"]) / 2)


def _findings(old: Sequence[Json], new: Sequence[Json], where: str) -> Iterator[Change]:
    """Findings that are gone or new. Lines move when code is edited, so that a finding is its code and its message."""
    gone = Counter(_identity(f) for f in old) - Counter(_identity(f) for f in new)
    come = Counter(_identity(f) for f in new) - Counter(_identity(f) for f in old)
    for kind, word, counted, findings in (("better", "gone", gone, old), ("worse", "new", come, new)):
        for finding in findings:
            if counted[_identity(finding)] > 0:
                counted[_identity(finding)] -= 1
                line = f", line {finding['line']}" if finding["line"] is not None else ""
                cost = finding["predicted_ms_per_call"]
                price = f", about {duration(cost)} per call" if cost is not None else ""
                text = f"{where}{word}: {finding['code']} {finding['name']}{line}{price}: "
                yield Change(kind=kind, text=text + one_line(finding["message"], 90))


def _identity(finding: Json) -> tuple[object, ...]:
    """Numbers in a message differ from run to run, and which regions share it; what else stands in backticks is the
    person's code.
    """
    quoted = tuple(_ALIKE.split(finding["message"])[0].split("`")[1::2])
    return (finding["code"], finding["severity"] == "blocker", quoted)


def comparison_text(first: Sequence[Json], second: Sequence[Json]) -> str:
    """A verdict in the first line, then every change."""
    changes = compare_reports(first, second)
    counts = Counter(change.kind for change in changes)
    parts = [f"{counts[kind]} {kind}" for kind in ("better", "worse") if counts[kind]]
    verdict = ", ".join(parts) or "no significant change"
    if len(first) == len(second) == 1:
        lines = [
            verdict,
            f"  was: {one_line(first[0]['verdict'], 200)}",
            f"  now: {one_line(second[0]['verdict'], 200)}",
        ]
    else:
        lines = [verdict]
    marks = {"better": "+", "worse": "-", "same": "=", "note": " "}
    return "\n".join([*lines, *(f"{marks[change.kind]} {change.text}" for change in changes)])
