"""The README's figures are those of the committed results."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_readme_holds_the_table_of_the_results() -> None:
    table = runpy.run_path(str(ROOT / "benchmarks" / "table.py"))["table"]()
    assert table in (ROOT / "README.md").read_text()


def test_the_page_of_measurements_holds_the_tables_of_the_results() -> None:
    made = runpy.run_path(str(ROOT / "benchmarks" / "table.py"))
    page = (ROOT / "docs" / "measurements.md").read_text()
    for table in made["TABLES"][1:]:
        assert table() in page, table
