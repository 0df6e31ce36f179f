"""What was learned of a notebook's cells, as a file: which are left to streams or served by graphs, what was refused.

Cells are known by a digest of what makes them the same (`history.key_of`), so that a changed one is not among them; the
file holds none of their source. What it says is of one torch, one Python and one device.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ...errors import UsageError
from ...model import CODES, CellEvidence, Finding, Position, Reason, Refused, RegionEvidence, ShapeCount
from .history import Past

FORMAT, VERSION = "grape-remembered", 1
_ELSEWHERE = "an earlier cell"
_MOST_CELLS = 4096
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What has to be the same for anything in the file to hold."""

    torch: str
    python: str
    device: str

    def difference(self, here: Machine) -> str | None:
        """In words, what is another one here; None where that is nothing."""
        for name in self.__slots__:
            if getattr(self, name) != getattr(here, name):
                return f"it was written with {name} {getattr(self, name)}, and here is {getattr(here, name)}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    machine: Machine
    pasts: Mapping[str, Past]
    """By the digest of the cell."""


# -- writing -----------------------------------------------------------------------------------------------------------


def written(pasts: Mapping[str, Past], machine: Machine) -> str:
    """The file's text, of cells of which there is nothing more to learn."""
    head = {"format": FORMAT, "version": VERSION, **{name: getattr(machine, name) for name in Machine.__slots__}}
    cells = [json.dumps({"cell": digest, **_row(past)}, ensure_ascii=False) for digest, past in pasts.items()]
    lines = ",\n".join(cells)
    return json.dumps(head, ensure_ascii=False)[:-1] + f', "cells": [\n{lines}\n]}}\n'


def _row(past: Past) -> dict[str, object]:
    evidence = past.evidence
    tolerance, memory_budget, engine = past.applied
    return {
        "served": past.served,
        "why": past.why,
        "outbid": past.outbid,
        "streamed": past.streamed,
        "operators": past.operators,
        "streamless": past.streamless,
        "applied": {"tolerance": tolerance, "memory_budget": memory_budget, "engine": engine},
        "name": evidence.file,
        "backend": evidence.backend,
        "cuda": evidence.cuda,
        "torch_ran": evidence.torch_ran,
        "wall_ms": evidence.wall_ms,
        "regions": [_region(region, evidence.file) for region in evidence.regions],
        "findings": [_finding(one) for one in past.findings if one.at is None or _holds(one.at, evidence.file)],
    }


def _holds(at: Position, cell: str) -> bool:
    """The numbers of other cells are other ones in another kernel."""
    return at.file == cell or not at.file.startswith("In[")


def _region(region: RegionEvidence, cell: str) -> dict[str, object]:
    refused = region.refused
    return {
        "name": region.name,
        "at": _position(region.at, cell),
        "end_line": region.end_line,
        "loop_line": region.loop_line,
        "parent": region.parent,
        "outcome": region.outcome,
        "refused": None
        if refused is None
        else {
            "reason": refused.reason.name,
            "at": _position(refused.at, cell) if refused.at is not None else None,
            "details": dict(refused.details),
        },
        "calls": region.calls,
        "replays": region.replays,
        "shapes": [
            {"calls": one.calls, "sizes": [[name, list(size)] for name, size in one.shapes]} for one in region.shapes
        ],
    }


def _position(at: Position, cell: str) -> dict[str, object]:
    return {"file": at.file if _holds(at, cell) else _ELSEWHERE, "line": at.line, "function": at.function}


def _finding(one: Finding) -> dict[str, object]:
    return {
        "code": one.code,
        "severity": one.severity,
        "message": one.message,
        "at": None if one.at is None else {"file": one.at.file, "line": one.at.line, "function": one.at.function},
        "end_line": one.end_line,
        "region": one.region,
        "evidence": [[name, value] for name, value in one.evidence],
        "predicted_ms_per_call": one.predicted_ms_per_call,
        "advice": one.advice,
    }


# -- reading -----------------------------------------------------------------------------------------------------------


class _Bad(Exception):
    """Why a file is none of these."""


def read(text: str, shown: str) -> Remembered:
    """What `written` gave. Raises `UsageError` for anything else; `shown` names the file."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"'{shown}' is no file of %grape remember: it is no JSON") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"'{shown}' is no file of %grape remember")
    if data.get("version") != VERSION:
        known = f"this Grape reads version {VERSION}; run %grape remember anew"
        raise UsageError(f"'{shown}' has version {data.get('version')!r} of what %grape remember writes; {known}")
    try:
        machine = Machine(**{name: _value(data, name, str) for name in Machine.__slots__})
        rows = _value(data, "cells", list)
        if len(rows) > _MOST_CELLS:
            raise _Bad(f"it has {len(rows)} cells")
        pasts = {_digest(_is(row, dict, "a cell")): _past(row, machine) for row in rows}
    except _Bad as bad:
        raise UsageError(f"'{shown}' is damaged: {bad}") from None
    return Remembered(machine=machine, pasts=pasts)


def _is(value: object, kind: type[_T], what: str) -> _T:
    if type(value) is not kind:
        raise _Bad(f"{what} is no {kind.__name__}")
    return value


def _value(row: Mapping[str, object], name: str, kind: type[_T]) -> _T:
    if name not in row:
        raise _Bad(f"'{name}' is missing")
    value = row[name]
    if kind is float and type(value) is int:
        value = float(value)
    return _is(value, kind, f"'{name}'")


def _optional(row: Mapping[str, object], name: str, kind: type[_T]) -> _T | None:
    return None if name in row and row[name] is None else _value(row, name, kind)


def _one_of(row: Mapping[str, object], name: str, known: Iterable[str]) -> Any:
    value = _value(row, name, str)
    if value not in known:
        raise _Bad(f"'{name}' is '{value}'")
    return value


def _digest(row: Mapping[str, object]) -> str:
    digest = _value(row, "cell", str)
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise _Bad("'cell' is no digest")
    return digest


def _past(row: Mapping[str, object], machine: Machine) -> Past:
    applied = _value(row, "applied", dict)
    evidence = CellEvidence(
        file=_value(row, "name", str),
        source="",
        device=machine.device,
        backend=_value(row, "backend", str),
        wall_ms=_value(row, "wall_ms", float),
        cuda=_value(row, "cuda", bool),
        torch_ran=_value(row, "torch_ran", bool),
        regions=tuple(_region_of(_is(one, dict, "a region")) for one in _value(row, "regions", list)),
    )
    served = _value(row, "served", bool)
    return Past(
        runs=1,
        settled=not served,  # the graphs are gone: the run captures them again
        served=served,
        why=_optional(row, "why", str),
        outbid=_value(row, "outbid", bool),
        streamed=_value(row, "streamed", bool),
        operators=_optional(row, "operators", int),
        streamless=_optional(row, "streamless", str),
        evidence=evidence,
        findings=tuple(_finding_of(_is(one, dict, "a finding")) for one in _value(row, "findings", list)),
        applied=(
            _value(applied, "tolerance", float),
            _optional(applied, "memory_budget", int),
            _value(applied, "engine", str),
        ),
        recalled=True,
    )


def _region_of(row: Mapping[str, object]) -> RegionEvidence:
    refused = _optional(row, "refused", dict)
    return RegionEvidence(
        name=_value(row, "name", str),
        at=_position_of(_value(row, "at", dict)),
        end_line=_optional(row, "end_line", int),
        loop_line=_optional(row, "loop_line", int),
        parent=_optional(row, "parent", str),
        outcome=_one_of(row, "outcome", ("replayed", "observed", "refused")),
        refused=_refused_of(refused) if refused is not None else None,
        calls=_value(row, "calls", int),
        replays=_value(row, "replays", int),
        shapes=tuple(
            _shape_of(_is(one, dict, "a shape"), order) for order, one in enumerate(_value(row, "shapes", list))
        ),
    )


def _shape_of(row: Mapping[str, object], order: int) -> ShapeCount:
    sizes = []
    for pair in _value(row, "sizes", list):
        if type(pair) is not list or len(pair) != 2 or type(pair[1]) is not list:
            raise _Bad("'sizes' has no pairs of a name and its sizes")
        sizes.append((_is(pair[0], str, "a name"), tuple(_is(size, int, "a size") for size in pair[1])))
    return ShapeCount(shapes=tuple(sizes), calls=_value(row, "calls", int), order=order)


def _refused_of(row: Mapping[str, object]) -> Refused:
    reason = Reason[_one_of(row, "reason", Reason.__members__)]
    at = _optional(row, "at", dict)
    details = {name: _is(text, str, f"'{name}'") for name, text in _value(row, "details", dict).items()}
    try:
        reason.sentence.format(**details)
    except (KeyError, IndexError):
        raise _Bad(f"'details' of {reason.name} are others") from None
    return Refused(reason=reason, at=_position_of(at) if at is not None else None, details=tuple(details.items()))


def _position_of(row: Mapping[str, object]) -> Position:
    return Position(file=_value(row, "file", str), line=_value(row, "line", int), function=_value(row, "function", str))


def _finding_of(row: Mapping[str, object]) -> Finding:
    at = _optional(row, "at", dict)
    evidence = []
    for pair in _value(row, "evidence", list):
        if type(pair) is not list or len(pair) != 2:
            raise _Bad("'evidence' has no pairs of a name and a value")
        evidence.append((_is(pair[0], str, "a name"), pair[1]))
    return Finding(
        code=_one_of(row, "code", CODES),
        severity=_one_of(row, "severity", ("blocker", "costly", "hint")),
        message=_value(row, "message", str),
        at=_position_of(at) if at is not None else None,
        end_line=_optional(row, "end_line", int),
        region=_optional(row, "region", str),
        evidence=tuple(evidence),
        predicted_ms_per_call=_optional(row, "predicted_ms_per_call", float),
        advice=_optional(row, "advice", str),
    )
