"""The README's figures are those of the committed results."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def test_the_readme_holds_the_table_of_the_results() -> None:
    table = runpy.run_path(str(ROOT / "benchmarks" / "table.py"))["table"]()
    assert table in (ROOT / "README.md").read_text()


def test_the_page_of_measurements_holds_the_tables_of_the_results() -> None:
    made = runpy.run_path(str(ROOT / "benchmarks" / "table.py"))
    page = (ROOT / "docs" / "measurements.md").read_text()
    for table in made["TABLES"][1:]:
        assert table() in page, table


MACHINE = {"gpu": None, "cpus": 2, "torch": "2.13.0"}


def cell(later: list[float] | None, **changed: Any) -> dict[str, Any]:
    """What benchmarks/libraries.py found of a cell under an engine."""
    served = {"operators": 1000, "matched": 900, "as_written": {"host read": 60, "another thread": 40}}
    times = {"plain_s": [2.0], "grape_s": [3.0], "later_s": later, "streams": [None, served]}
    return {**times, "differences": [], "failed": {}, "apart": {}, **changed}


LIBRARIES = {
    "agrees": {"engines": {"streams": cell([1.0, 1.5]), "regions": cell([1.0, 1.1], differences=["pass 1: kept"])}},
    "draws": {"engines": {"streams": cell([1.0, 1.0], apart={"kept": [0.25, 0.125]}, streams=[None])}},
    "ends": {"engines": {"streams": cell(None, failed={"grape": "exit status 1: a |\n b"}, streams=[])}},
    "lacks": {"skipped": "not installed: lightning"},
    "raises": {"engines": {}, "failed": "ValueError"},
}


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Any]:
    made = runpy.run_path(str(ROOT / "benchmarks" / "table.py"))
    made["load"].__globals__["RESULTS"] = tmp_path
    for part in ("libraries_cpu", "libraries_reference"):
        (tmp_path / f"{part}.json").write_text(json.dumps({"machine": MACHINE, "rows": LIBRARIES}))
    return made


def test_each_cell_over_libraries_has_a_row_also_where_nothing_was_measured(tables: dict[str, Any]) -> None:
    lines = tables["libraries_table"]("cpu").splitlines()
    assert lines[2:] == [
        "| agrees | streams | 2.00 s | 3.00 s | 1.00 s | 1.50 s | 1.50 | identical |",
        "| agrees | regions | 2.00 s | 3.00 s | 1.00 s | 1.10 s | 1.10 | pass 1: kept |",
        "| draws | streams | 2.00 s | 3.00 s | 1.00 s | 1.00 s | 1.00 | kept: plain runs 2e-01 apart, Grape's 1e-01 |",
        "| ends | streams | - | - | - | - | - | exit status 1: a \\| b |",
        "| lacks | - | - | - | - | - | - | not installed: lightning |",
        "| raises | - | - | - | - | - | - | fails plainly: ValueError |",
        "",
        "CPU, 2 cores, torch 2.13.0; passes with their reports, later ones in pairs. Ratio: median 1.10, at most 1.50.",
    ]


def test_what_matched_in_cells_over_libraries(tables: dict[str, Any]) -> None:
    lines = tables["libraries_reference_table"]().splitlines()
    assert lines[0] == "| cell | operators | matched | most of the rest | streams | regions |"
    assert lines[2:7] == [
        "| agrees | 1,000 | 90% | host read 60, another thread 40 | identical | pass 1: kept |",
        "| draws | 0 | - | - | kept: plain runs 2e-01 apart, Grape's 1e-01 | - |",
        "| ends | 0 | - | - | exit status 1: a \\| b | - |",
        "| lacks | 0 | - | - | not installed: lightning | not installed: lightning |",
        "| raises | 0 | - | - | fails plainly: ValueError | fails plainly: ValueError |",
    ]
