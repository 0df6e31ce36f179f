"""The JSON of reports, as `to_dict()` makes it and files hold it: the parts that are read again.

All that is in it stands in `docs/report.schema.json`. Files that people hand over are checked where they are read.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

from ..model import Outcome, Severity


class FixJson(TypedDict):
    id: int
    diff: str
    verified: bool


class FindingJson(TypedDict):
    code: str
    name: str
    severity: Severity
    file: str
    line: int
    end_line: int | None
    message: str
    evidence: dict[str, object]
    predicted_ms_per_call: float | None
    fix: FixJson | None


class CellJson(TypedDict):
    file: str
    wall_ms: float
    plain_ms: float | None
    slower: bool
    error: str | None


class RegionJson(TypedDict):
    name: str
    file: str
    line: int
    outcome: Outcome
    reason: str | None
    calls: int
    replays: int
    speedup: float | None


class ReportJson(TypedDict):
    """Of one cell. `cells` stands in a file of several instead."""

    version: int
    device: str
    verdict: str
    cell: CellJson
    regions: list[RegionJson]
    findings: list[FindingJson]
    cells: NotRequired[list[ReportJson]]
