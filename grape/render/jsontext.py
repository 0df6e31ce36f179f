"""The report as JSON text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Set
from typing import Any

from ..model import ReportData

__all__ = ["render_json"]


def render_json(report: ReportData) -> str:
    """`report.to_dict()` as JSON. Numbers that JSON has no word for become null, other objects their text."""
    return json.dumps(_plain(report.to_dict()), indent=2, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Set):
        return sorted((_plain(item) for item in value), key=repr)
    return str(value)
