"""Look-ups in the cell's own source."""

from __future__ import annotations

import pytest

from grape.advisor.source import CellSource
from tests.unit.trace_builder import CELL, at

SOURCE = """%matplotlib inline
x = start()
for batch in first(x):
    y = step(batch)
    def inner():
        return y.item()
    while more():
        z = step(y)
out = [step(v) for v in
       values]
!ls
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [(2, False), (3, False), (4, True), (6, False), (7, True), (8, True), (9, True), (11, False)],
)
def test_in_loop(line: int, expected: bool) -> None:
    assert CellSource(CELL, SOURCE).in_loop(at(line)) is expected


def test_other_files_and_broken_sources_have_no_answer() -> None:
    elsewhere = at(4, file="lib.py")
    assert CellSource(CELL, SOURCE).in_loop(elsewhere) is None
    assert CellSource(CELL, SOURCE).call(elsewhere, ("step",)) is None
    assert CellSource(CELL, "for x in").in_loop(at(1)) is None
    assert CellSource(CELL, SOURCE).in_loop(None) is None


def test_top_level_await_and_masked_magics_keep_their_lines() -> None:
    source = CellSource(CELL, "%%grape --profile\nfor i in range(3):\n    r = await f(i)\n")
    assert source.in_loop(at(3)) is True
    assert source.target(at(3)) == "r"


@pytest.mark.parametrize(
    ("text", "line", "target"),
    [
        ("a = f()", 1, "a"),
        ("a: int = f()", 1, "a"),
        ("a += f()", 1, "a"),
        ("s.k[0] = f(\n  1)", 2, "s.k[0]"),
        ("f()", 1, None),
    ],
)
def test_target(text: str, line: int, target: str | None) -> None:
    assert CellSource(CELL, text).target(at(line)) == target


def test_a_condition_over_several_lines_is_found_from_each_of_them() -> None:
    source = CellSource(CELL, "if (a >\n    b):\n    c()\n")
    assert [source.condition(at(line), "if") for line in (1, 2, 3)] == ["a > b", "a > b", None]
