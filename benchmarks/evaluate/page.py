"""The page of an evaluation, made from its files: tables, plots, and where Grape loses."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import costs, losses, overall, plots, short, studies, tables, verdicts
from .figures import Found

__all__ = ["make", "merged", "page"]

ROOT = Path(__file__).parents[2]
NAME = "evaluation"
COMMAND = "python -m benchmarks.evaluate --out DIR --write"
PUBLISHED = "That is their baseline, not the one below: ratios of this page are over eager."


def merged(out: Path) -> list[Found]:
    """All files, those of one column after the other in the order of the rows."""
    from .columns import COLUMNS

    texts = [path.read_text().replace(f"{ROOT}/", "") for path in sorted((out / "cells").glob("*.json"))]
    found = [json.loads(text) for text in texts]
    places = {name: place for place, name in enumerate(COLUMNS)}
    return sorted(found, key=lambda one: (places.get(one["column"], 99), one["group"], one["row"]))


def make(out: Path, *, write: bool) -> None:
    """The page, its pictures and the data beside the files; with `write` also where the documentation keeps them."""
    found = merged(out)
    _put(out / f"{NAME}.json", data(found))
    _put(out / f"{NAME}.md", page(found, ""))
    for name, picture in pictures(found).items():
        _put(out / name, picture)
    if write:
        _put(ROOT / "benchmarks" / "results" / f"{NAME}.json", data(found))
        _put(ROOT / "docs" / f"{NAME}.md", page(found, "images/"))
        for name, picture in pictures(found).items():
            _put(ROOT / "docs" / "images" / name, picture)


def data(found: Sequence[Found]) -> str:
    """A line for each row and column: every sample."""
    lines = ",\n".join(json.dumps(one) for one in found)
    return f'{{"cells": [\n{lines}\n]}}\n'


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# -- pictures ---------------------------------------------------------------------------------------------------------


def pictures(found: Sequence[Found]) -> dict[str, str]:
    made: dict[str, str] = {}
    for name, draw in _drawn(found).items():
        for palette in (plots.LIGHT, plots.DARK):
            made[f"{NAME}-{name}-{palette.name}.svg"] = draw(palette)
    return made


def _drawn(found: Sequence[Found]) -> dict[str, Callable[[plots.Palette], str]]:
    """Only what there is something to draw of."""
    drawn: dict[str, Callable[[plots.Palette], str]] = {}
    steps, series = tables.points(found)
    if steps:
        drawn["steps"] = lambda palette: plots.dots(steps, series, "times faster than eager, a step", palette)
    whole = tables.program_points(found)
    if whole:
        kinds = ["first run", "later run"]
        drawn["programs"] = lambda palette: plots.dots(whole, kinds, "times faster, reports included", palette)
    for kind, (up, lines) in studies.growth_lines(found).items():
        drawn[kind] = lambda palette, kind=kind, up=up, lines=lines: plots.lines(lines, kind, up, palette)
    return drawn


def _picture(name: str, alt: str, folder: str) -> str:
    light, dark = (f"{folder}{NAME}-{name}-{palette}.svg" for palette in ("light", "dark"))
    return (
        f'<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="{dark}">\n'
        f'  <img src="{light}" alt="{alt}">\n</picture>'
    )


# -- the page ---------------------------------------------------------------------------------------------------------


def page(found: Sequence[Found], folder: str) -> str:
    drawn = _drawn(found)
    parts: list[str | None] = [
        "# Evaluation",
        tables.prose(
            f"Made by `{COMMAND}`; every sample is in `benchmarks/results/{NAME}.json`. A row is a function or a",
            "script that can be read by itself ([rows](../benchmarks/evaluate/rows)), a column a way to run it. Each",
            "pair has a process of its own, where runs of the column stand beside eager runs; every ratio is of one",
            "process.",
        ),
        *(["## In short", told, "## How it was measured"] if (told := short.in_short(found)) else []),
        overall.METHOD,
        overall.machines(found),
        overall.columns_measured(found),
        overall.coverage(found),
        overall.duration(found),
        "## In all",
        overall.summary(found),
        overall.SUMMARY_SAYS,
        overall.noise_said(found),
        overall.by_group(found),
        _picture("steps", "Steps of each row against eager", folder) if "steps" in drawn else None,
        "## Where Grape loses, and why",
        losses.losses(found),
        verdicts.verdicts(found),
    ]
    from .rows import GROUPS

    for group in GROUPS:
        if group.name not in ("growth", "libraries"):
            said = [group.said, PUBLISHED] if group.said else []
            parts += [f"## {group.title}", tables.prose(*said), tables.steps(found, group)]
    parts += [
        "## What it costs until it pays",
        costs.costs_table(found),
        costs.COSTS_SAY,
        costs.memory_said(found),
        "## Whole programs",
        tables.programs_said(found),
        _picture("programs", "Whole programs against eager", folder) if "programs" in drawn else None,
        tables.programs_table(found),
        "## What each technique gives",
        studies.ablations(found),
        "## How costs grow",
        studies.growth_table(found),
        *(_picture(kind, f"Cost by {kind}", folder) for kind in studies.growth_lines(found) if kind in drawn),
        "### Ranks",
        studies.ranks(_several_gpus()),
        "## What did not run",
        tables.failures(found),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _several_gpus() -> dict[str, Any]:
    path = ROOT / "benchmarks" / "results" / "several_gpus.json"
    return json.loads(path.read_text()) if path.is_file() else {}
