"""Look-ups in the cell's own source."""

from __future__ import annotations

import pytest

from grape.advisor.code.source import CellSource
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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("if h.sum()>1e9: break", "h.sum()>1e9"),
        ("if  x [0]: pass", "x [0]"),
        ("if f'{x.item()}' == '1': pass", "f'{x.item()}' == '1'"),
    ],
)
def test_a_condition_is_shown_as_it_was_written(text: str, shown: str) -> None:
    assert CellSource(CELL, text).condition(at(1), "if") == shown


def test_a_call_inside_an_f_string_is_shown_right_on_every_python() -> None:
    assert CellSource(CELL, "print(f'loss {loss.item():.3f}')").call(at(1), ("item",)) == "loss.item()"


@pytest.mark.parametrize(
    ("body", "leaves"),
    [
        ("        break", True),
        ("        raise ValueError", True),
        ("        y = 1\n        if z:\n            break", True),
        ("        with f():\n            break", True),
        ("        y = 1", False),
        ("        continue", False),
        ("        for v in w:\n            break", False),
        ("        pass\n    else:\n        break", False),
    ],
)
def test_an_if_that_leaves_its_loop(body: str, leaves: bool) -> None:
    source = CellSource(CELL, f"for x in y:\n    if x.any():\n{body}\n")
    assert source.leaves(at(2)) is leaves
    assert not source.leaves(at(1)) and not source.leaves(None)


def test_lines_of_other_cells_are_looked_up_in_the_sources_that_are_known() -> None:
    source = CellSource(CELL, "y = f(x)", [("In[2]", "def f(x):\n    if x.any(): return x\n"), (CELL, "stale")])
    assert source.condition(at(2, file="In[2]"), "if") == "x.any()"
    assert source.target(at(1)) == "y"
    assert source.condition(at(2, file="In[3]"), "if") is None


def test_a_condition_over_several_lines_is_found_from_each_of_them() -> None:
    source = CellSource(CELL, "if (a >\n    b):\n    c()\n")
    assert [source.condition(at(line), "if") for line in (1, 2, 3)] == ["a > b", "a > b", None]


@pytest.mark.parametrize(
    ("text", "subscript"),
    [
        ("y = f(x[:2, :2], x[-1], x[0, -3:], x[..., None])", None),
        ("y = f(x[:2], x[:, k])", "x[:, k]"),
        ("y = x[-k]", "x[-k]"),
    ],
)
def test_an_index_of_numbers_reads_no_tensor(text: str, subscript: str | None) -> None:
    assert CellSource(CELL, text).subscript(at(1)) == subscript
