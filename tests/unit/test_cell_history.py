"""When a cell is the same cell as before, and what is remembered of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grape.model import Finding, Position
from grape.options import Options
from grape.sessions.past.again import evidence_again, report_again
from grape.sessions.past.history import MOST_CELLS, History, key_of
from tests.unit.sample_past import LEFT

FUNCTIONS = "def inner(x):\n    return x * SCALE\ndef step(x):\n    return inner(x) + 1\ndef other(x):\n    return x\n"


def namespace(source: str = FUNCTIONS, **names: Any) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "__main__", "SCALE": True, **names}
    exec(compile(source, "<ipython-input-1-0>", "exec"), space)
    return space


def same(source: str, one: dict[str, Any], other: dict[str, Any]) -> bool:
    first, second = key_of(source, one), key_of(source, other)
    assert first is not None and second is not None
    return first == second


def test_the_same_source_over_the_same_code_is_the_same_cell() -> None:
    assert same("y = step(x)", namespace(), namespace())


@pytest.mark.parametrize(
    ("changed", "equal"),
    [
        (FUNCTIONS.replace("+ 1", "+ 2"), False),
        (FUNCTIONS.replace("* SCALE", "/ SCALE"), False),  # reached through another function
        (FUNCTIONS.replace("    return x\n", "    return x + 9\n"), True),  # nothing in the cell leads there
    ],
)
def test_code_counts_where_the_cell_leads_to_it(changed: str, equal: bool) -> None:
    assert same("y = step(x)", namespace(), namespace(changed)) is equal


def test_what_grape_is_asked_for_does_not_count() -> None:
    space = namespace()
    typed = [f"\n%%grape {options}\ny = step(x)" for options in ("", "--json a.json", "-o first")]
    keys = {key_of(source, space) for source in (*typed, typed[0].replace("%%", "# %%"))}
    assert len(keys) == 1 and None not in keys
    assert key_of("\n" + typed[0], space) not in keys, "its lines are others"


def test_methods_of_a_class_count_where_an_object_of_it_is_used() -> None:
    written = "class Net:\n    def forward(self):\n        return {}\nnet = Net()\n"
    assert not same("net.forward()", namespace(written.format(1)), namespace(written.format(2)))


def test_flags_count_and_numbers_do_not() -> None:
    assert not same("step(x)", namespace(SCALE=True), namespace(SCALE=False))
    assert same("step(x)", namespace(SCALE=1), namespace(SCALE=2))


def test_what_the_cell_binds_itself_does_not_count() -> None:
    source = "total = 0\nfor i in range(3):\n    total += step(i)\n"
    assert same(source, namespace(), namespace(total=3.5, i=2))


def test_parameters_that_train_or_moved_make_another_cell() -> None:
    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).requires_grad_(False)
    assert not same("net(x)", namespace(net=one), namespace(net=other))
    assert same("net(x)", namespace(net=one), namespace(net=torch.nn.Linear(2, 2).eval()))


def test_magics_are_no_obstacle_and_a_percent_sign_is_no_magic() -> None:
    assert key_of("%matplotlib inline\n!ls\ny = step(x)", namespace()) is not None
    space = namespace()
    source = "print('%d'\n      % step(x))"
    assert not same(source, space, namespace(FUNCTIONS.replace("+ 1", "+ 2")))
    assert key_of("def broken(:", space) is None


def test_only_the_last_cells_are_kept() -> None:
    history = History()
    keys = [(f"cell {number}", frozenset[Any]()) for number in range(MOST_CELLS + 3)]
    for key in keys:
        history.remember(key, LEFT)
    assert [history.of(key, LEFT.applied) for key in keys[:4]] == [None, None, None, LEFT]
    for other in (Options(memory_budget=0), Options(tolerance=1e-6), Options(engine="regions")):
        assert history.of(keys[-1], other.applied) is None
    assert history.of(keys[-1], Options(no_widget=True, output="report", engine="auto").applied) is LEFT
    assert history.of(None, LEFT.applied) is None


def test_what_was_paid_once_is_not_told_of_a_run_that_nobody_looked_at() -> None:
    found = tuple(
        Finding(code=code, severity="costly", message="", at=Position(file="In[1]", line=1, function="<module>"))
        for code in ("GR203", "GR303")
    )
    past = replace(LEFT, findings=found)
    evidence = evidence_again(past, "In[2]", stance="it runs as written", wall_ms=1.0, error=None)
    report = report_again(SimpleNamespace(session=None, report=None), past, evidence, None)
    assert [(one.code, str(one.at)) for one in report.findings] == [("GR303", "In[2], line 1")]
