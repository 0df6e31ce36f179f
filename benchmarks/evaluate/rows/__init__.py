"""The rows, by group. A row is a function that builds a `Job`: read it to know what is measured."""

from __future__ import annotations

from ..job import Group, Row
from .control_flow import CONTROL_FLOW
from .everyday import EVERYDAY
from .growth import GROWTH
from .kernels import KERNELS
from .language import LANGUAGE
from .paper import PAPER
from .public import LIBRARIES, programs
from .ragged import RAGGED
from .vision import VISION

__all__ = ["GROUPS", "ROWS", "programs"]

GROUPS: list[Group] = [PAPER, LANGUAGE, VISION, EVERYDAY, KERNELS, CONTROL_FLOW, RAGGED, LIBRARIES, GROWTH]
ROWS: dict[str, Row] = {row.name: row for group in GROUPS for row in group.rows}
