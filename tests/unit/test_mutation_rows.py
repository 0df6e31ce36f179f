"""The rows of the mutation table break something: what they replace is there."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401 - the table imports it, and it wraps functions of torch for good

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_every_row_names_code_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    table, rows = (importlib.import_module(name) for name in ("mutation_table", "mutations.rows"))
    assert len(table.ROWS) > 400
    assert {row.what: gone for row in table.ROWS if (gone := rows.stale(row))} == {}
    assert rows.stale(rows.Row("one", rows.edited("grape.errors", "no such text", ""), ())) == [
        "errors.py: 'no such text'"
    ]
