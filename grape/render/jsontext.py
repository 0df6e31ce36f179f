"""The report as JSON text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Set
from typing import Any

from ..model import ReportData


def render_json(report: ReportData) -> str:
    """`report.to_dict()` as JSON. Numbers that JSON has no word for become null, other objects their text."""
    return json.dumps(plain(report.to_dict()), indent=2, allow_nan=False) + "\n"


def plain(value: object) -> Any:
    """`value` in the words of JSON: objects become their text, numbers that JSON has no word for null."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Set):
        return sorted((plain(item) for item in value), key=repr)
    return str(value)
