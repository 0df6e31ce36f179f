"""Which pairs of a row and a column are run, and in which order: the columns by importance."""

from __future__ import annotations

import argparse

from .columns import ABLATIONS, COLUMNS, OPTIONAL
from .job import Row
from .rows import GROUPS, programs
from .running import Cell

__all__ = ["chosen"]

QUICK = ("grape", "by_hand")
"""Columns that `--quick` runs: compilers take too long to show only that they run."""


def chosen(arguments: argparse.Namespace) -> list[Cell]:
    groups = [*GROUPS, *([programs(arguments.programs)] if arguments.programs else [])]
    rows = [row for group in groups for row in group.rows if _wanted(row, arguments.only)]
    known = {row.name for group in groups for row in group.rows} | {group.name for group in groups}
    unknown = [*(set(arguments.only or ()) - known), *(set(arguments.columns or ()) - set(COLUMNS))]
    if unknown:
        raise SystemExit(f"neither a row, a group nor a column: {', '.join(sorted(unknown))}")
    cells = [
        Cell(row=row, column=column)
        for column in arguments.columns or _default(arguments.quick)
        for row in rows
        if _has(row, column)
    ]
    number, of = (int(part) for part in arguments.part.split("/"))
    return cells[number - 1 :: of]


def _wanted(row: Row, only: list[str] | None) -> bool:
    if only is None:
        return not row.long
    return row.name in only or (row.group in only and not row.long)


def _default(quick: bool) -> list[str]:
    return list(QUICK) if quick else [name for name in COLUMNS if name not in OPTIONAL]


def _has(row: Row, column: str) -> bool:
    if row.columns is not None and column not in row.columns:
        return False
    return column not in ABLATIONS or column in row.ablations
