"""Whole programs as others wrote them, and cells over installed libraries: whole times, with reports."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..job import Group, Job, Size

__all__ = ["LIBRARIES", "measure_program", "programs"]

CELLS = Path(__file__).parents[2] / "library_cells"
COLUMNS = ("grape",)

NEEDS = "# needs: "


def nothing(size: Size) -> Job:
    raise AssertionError("a program is measured as it is")


def add(group: Group, program: Path) -> None:
    """What it does and needs stands in its first lines, where they are in the form of `library_cells`."""
    first, second = (*program.read_text().splitlines()[:2], "", "")[:2]
    needs = second.removeprefix(NEEDS).split(", ") if second.startswith(NEEDS) else []
    what = first.removeprefix("# %%").strip() or program.stem.replace("_", " ")
    group.add(program.stem, what if group.name == "libraries" else program.stem, nothing, *needs, program=program)


def programs(folder: Path) -> Group:
    group = Group("programs", "Public programs", columns=COLUMNS)
    for program in sorted(folder.glob("*.py")):
        add(group, program)
    return group


LIBRARIES = Group("libraries", "Cells over installed libraries", columns=COLUMNS)
for _program in sorted(CELLS.glob("*.py")):
    add(LIBRARIES, _program)


def measure_program(program: Path, size: Size, seconds: float, save: Callable[[dict[str, Any]], None]) -> None:
    """Plainly and under Grape, in two processes of its own, by the means of `programs.py`."""
    import programs as means

    os.environ["GRAPE_ENGINE"] = "auto"
    arguments = argparse.Namespace(pairs=1, timeout=max(60.0, 6 * seconds))
    found: dict[str, Any] = {"outcome": "unfinished", "at": "the plain runs"}
    save(found)
    with tempfile.TemporaryDirectory() as folder:
        runs = {"plain": means.measured(program.resolve(), "plain", arguments, Path(folder))}
        if "failed" in runs["plain"]:
            why = str(runs["plain"]["failed"])
            save({"outcome": "not installed" if "ModuleNotFoundError" in why else "the row fails", "why": why[-300:]})
            return
        save(found | {"at": "the runs under Grape"})
        runs["grape"] = means.measured(program.resolve(), "grape", arguments, Path(folder))
        runs["again"] = runs["plain"]
        if means.differences(runs):
            runs["again"] = means.measured(program.resolve(), "again", arguments, Path(folder))
        row = means.row_of(program.stem, runs)
    reports = [one for a_pass in runs["grape"]["passes"][-1:] for one in a_pass["reports"] if one]
    save(
        {
            "machine": runs["grape"].get("machine"),
            "outcome": "failed" if row["failed"] else "measured",
            "why": "; ".join(f"{kind}: {why}" for kind, why in row["failed"].items()),
            "program": {key: row[key] for key in ("plain_s", "grape_s", "pairs_s", "later_s", "differences")},
            "more": {"verdict": "; ".join(report["verdict"] for report in reports)},
        }
    )
