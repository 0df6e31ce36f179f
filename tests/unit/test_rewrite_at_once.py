"""Trees that run in the place of what was typed: the same results, the typed cell's lines, nothing left behind."""

from __future__ import annotations

import ast
import traceback
import types
from collections.abc import Iterator
from dataclasses import replace
from textwrap import dedent
from typing import Any

import pytest
import torch

from grape.fixing.at_once import Offers, rewritten_cell
from grape.magics.rewriting.at_once import Left, Replacement, replaced_tree, restore_functions, watch_tree
from grape.magics.rewriting.taken import AtOnce
from grape.model import Finding, Fix
from grape.rewrite.at_once import fix_all
from tests.unit.rewrite_cases import finding, outcome, run
from tests.unit.test_rewrite_fixes import CASES, MODEL, Case


def _positions(code: types.CodeType) -> Iterator[int]:
    yield from (line for _, _, line in code.co_lines() if line is not None)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _positions(constant)


def _at_once(source: str, *found: Finding) -> tuple[ast.Module, Any]:
    made = fix_all(source, found)
    tree = replaced_tree(
        ast.parse(source), ast.parse(made.source), source.split("\n"), made.source.split("\n"), made.lines
    )
    return tree, made


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code} {case.name}")
def test_every_fix_as_a_tree(case: Case) -> None:
    source = dedent(case.before)
    tree, made = _at_once(source, finding(case.code, case.line, region=case.region, **case.evidence))
    assert made.source == dedent(case.after) and len(made.lines) == made.source.count("\n") + 1
    code = compile(tree, "<cell>", "exec")
    last = source.rstrip("\n").count("\n") + 1
    assert all(0 <= line <= last for line in _positions(code))
    plain = run(source, case.setup)
    torch.manual_seed(0)
    space: dict[str, Any] = {"torch": torch}
    exec(compile(case.setup, "<setup>", "exec"), space)
    exec(code, space)
    assert {name: outcome(plain[name]) for name in case.results} == {
        name: outcome(space[name]) for name in case.results
    }


LOSSES = """\
total = 0.0
losses = []
for number, x in enumerate(xs):
    loss = f(x).sum()
    losses.append(loss.item())
    if number == stop:
        raise ValueError(number)
"""
SUM = LOSSES.replace("losses.append(loss.item())", "total += loss.item()")


@pytest.mark.parametrize("stop", [0, 3])
@pytest.mark.parametrize("source", [LOSSES, SUM], ids=["list", "sum"])
def test_what_was_deferred_is_read_where_the_loop_raises(source: str, stop: int) -> None:
    tree, made = _at_once(source, finding("GR101", 5))
    assert made.applied
    results = []
    for code in (compile(source, "<cell>", "exec"), compile(tree, "<cell>", "exec")):
        torch.manual_seed(0)
        space: dict[str, Any] = {"torch": torch, "stop": stop}
        exec(MODEL, space)
        with pytest.raises(ValueError, match=str(stop)) as raised:
            exec(code, space)
        lines = [frame.lineno for frame in traceback.extract_tb(raised.value.__traceback__)][1:]
        results.append((outcome(space["losses"]), outcome(space["total"]), lines))
    assert results[0] == results[1]


EARLY = """\
def g(xs):
    for x in xs:
        if x.sum() > 100:
            return x
        check(x)
    return None
"""


def test_nothing_else_behind_a_loop_runs_where_it_raises() -> None:
    tree, made = _at_once(EARLY, finding("GR102", 3, region="g"))
    assert made.applied and not any(isinstance(node, ast.Try) for node in ast.walk(tree))

    def check(x: torch.Tensor) -> None:
        raise ValueError("from the body")

    space: dict[str, Any] = {"check": check}
    exec(compile(tree, "<cell>", "exec"), space)
    with pytest.raises(ValueError, match="from the body"):
        space["g"]([torch.ones(2)])
    assert space["g"]([]) is None and space["g"]([torch.ones(200)]).shape == (200,)


def test_a_branch_in_a_traceback_is_shown_from_the_function_that_was_typed() -> None:
    source = "def g(x):\n    x = x * 2\n    if x.sum() > 0:\n        x = x @ x\n    return x\n"
    tree, made = _at_once(source, finding("GR102", 3, region="g"))
    assert made.applied
    space: dict[str, Any] = {}
    exec(compile(tree, "<cell>", "exec"), space)
    with pytest.raises(RuntimeError) as raised:
        space["g"](torch.ones(2, 3))
    shown = [
        frame for frame, _ in traceback.walk_tb(raised.value.__traceback__) if frame.f_code.co_filename == "<cell>"
    ]
    assert len(shown) == 2 and shown[0].f_code.co_name == "g"
    assert {frame.f_code.co_firstlineno for frame in shown} == {1} and shown[-1].f_lineno == 4


def test_lines_of_several_fixes_add_up() -> None:
    source = """\
import torch
ys = []
for x in xs:
    y = x * torch.tensor(0.5)
    z = 1 / n
    ys.append(y.sum().item())
"""
    tree, made = _at_once(source, finding("GR401", 4), finding("GR101", 6))
    assert [one.code for one in made.applied] == ["GR401", "GR101"]
    with pytest.raises(ZeroDivisionError) as raised:
        exec(compile(tree, "<cell>", "exec"), {"xs": [torch.ones(2)], "n": 0})
    assert raised.value.__traceback__ is not None
    assert traceback.extract_tb(raised.value.__traceback__)[-1].lineno == 5


class Shell:
    """What `Replacement` asks of IPython's shell."""

    def __init__(self) -> None:
        self.ast_transformers: list[Any] = []
        self.user_ns: dict[str, Any] = {"torch": torch}
        self.compile = types.SimpleNamespace(flags=0)

    def transform_cell(self, text: str) -> str:
        return text if text.endswith("\n") else f"{text}\n"


@pytest.fixture
def shell() -> Shell:
    made = Shell()
    exec(MODEL, made.user_ns)
    return made


def _run(shell: Shell, source: str) -> None:
    tree = ast.parse(shell.transform_cell(source))
    for transformer in list(shell.ast_transformers):
        tree = transformer.visit(tree)
    exec(compile(ast.fix_missing_locations(tree), "<cell>", "exec", dont_inherit=True), shell.user_ns)


def test_names_that_only_the_rewrite_binds_go(shell: Shell) -> None:
    source = SUM.replace("if number == stop:\n        raise ValueError(number)", "pass")
    before = set(shell.user_ns)
    replacement = Replacement(shell, source, fix_all(source, [finding("GR101", 5)]), {})
    watch_tree(shell, replacement)
    _run(shell, source)
    assert replacement.happened and shell.ast_transformers == []
    assert "total_parts" in shell.user_ns
    replacement.tidy()
    assert set(shell.user_ns) - before == {"losses", "total", "number", "x", "loss"}
    assert type(shell.user_ns["total"]) is float


def test_what_a_comprehension_calls_its_items_is_no_name_of_the_cell(shell: Shell) -> None:
    source = LOSSES.replace("if number == stop:\n        raise ValueError(number)", "pass")
    made = fix_all(source, [finding("GR101", 5)])
    assert "[value.item() for value in losses]" in made.source
    shell.user_ns["value"] = 7
    replacement = Replacement(shell, source, made, {})
    watch_tree(shell, replacement)
    _run(shell, source)
    replacement.tidy()
    assert replacement.happened and shell.user_ns["value"] == 7


HALF = """\
import torch
def {name}(x):
    return torch.tanh(x) * torch.tensor({factor}, device="cpu")
"""


def test_a_constant_that_another_cell_left_is_not_replaced(shell: Shell) -> None:
    left: dict[str, Left] = {}
    happened = []
    for name, factor in (("f", 0.5), ("f", 0.5), ("g", 0.25), ("f", 0.5)):
        source = HALF.format(name=name, factor=factor)
        made = fix_all(source, [finding("GR401", 3, region=name)])
        assert made.applied
        replacement = Replacement(shell, source, made, left)
        watch_tree(shell, replacement)
        _run(shell, source)
        replacement.tidy()
        happened.append(replacement.happened)
    assert happened == [True, True, False, True], "g would change what f reads"
    assert "CONSTANT" in shell.user_ns["f"].__code__.co_names
    x = torch.ones(2)
    assert torch.equal(shell.user_ns["f"](x), torch.tanh(x) * 0.5)
    assert torch.equal(shell.user_ns["g"](x), torch.tanh(x) * 0.25)


def test_another_tree_runs_as_written(shell: Shell) -> None:
    replacement = Replacement(shell, LOSSES, fix_all(LOSSES, [finding("GR101", 5)]), {})
    watch_tree(shell, replacement)
    _run(shell, "x = 1")
    assert not replacement.happened and shell.user_ns["x"] == 1 and shell.ast_transformers == []


def test_a_failure_of_grape_runs_the_cell_as_written(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    source = LOSSES.replace("if number == stop:\n        raise ValueError(number)", "pass")
    made = fix_all(source, [finding("GR101", 5)])
    replacement = Replacement(shell, source, replace(made, lines=made.lines[:2]), {})
    watch_tree(shell, replacement)
    _run(shell, source)
    assert not replacement.happened and isinstance(shell.user_ns["losses"][0], float)


def test_functions_get_the_code_that_was_typed(shell: Shell) -> None:
    source = """\
class A:
    def g(self, x):
        return f(x)
def g(x):
    if x.sum() > 0:
        x = x + 1
    return x
"""
    replacement = Replacement(shell, source, fix_all(source, [finding("GR102", 5, region="g")]), {})
    watch_tree(shell, replacement)
    _run(shell, source)
    ran = replacement.ran("In[1]", "<cell>")
    function = shell.user_ns["g"]
    assert "branch" in function.__code__.co_names
    x = torch.ones(2)
    assert torch.equal(function(x), x + 1) and torch.equal(function(-x), -x)
    assert restore_functions(ran, shell.user_ns) == ["g"]
    assert "branch" not in function.__code__.co_names and torch.equal(function(x), x + 1)
    assert restore_functions(ran, shell.user_ns) == []


def _offered(code: str, line: int, *, verified: bool = True, file: str = "In[1]", **evidence: Any) -> Finding:
    return replace(finding(code, line, file=file, **evidence), fix=Fix(id=1, diff="d", verified=verified, why=""))


@pytest.mark.parametrize(
    ("offered", "runs"),
    [
        (_offered("GR101", 5), True),
        (_offered("GR101", 5, verified=False), False),
        (_offered("GR101", 5, file="In[0]"), False),
        (_offered("GR103", 4), False),
        (_offered("GR401", 4, operand_shapes=(((2,), (2,)),)), False),
        (finding("GR101", 5), False),
    ],
)
def test_what_may_run_unread(offered: Finding, runs: bool) -> None:
    offers = Offers()
    offers.learn(f"%%grape\n{LOSSES}", [offered], "In[1]")
    assert bool(offers.of(f"%%grape --rewrite\n{LOSSES}")) is runs
    assert not offers.of(f"%%grape\n{LOSSES}x = 1\n") and not offers.of(f"\n%%grape\n{LOSSES}")


def test_an_offer_is_kept_when_a_later_report_has_none() -> None:
    offers = Offers()
    offers.learn(LOSSES, [_offered("GR101", 5)], "In[1]")
    offers.learn(LOSSES, [], "In[2]")
    made = rewritten_cell(LOSSES, "In[2]", offers.of(LOSSES))
    assert made is not None and [one.at and one.at.file for one in made.applied] == ["In[2]"]


def test_what_source_alone_does_not_show_is_left() -> None:
    assert rewritten_cell(LOSSES, "In[1]", ()) is None
    assert rewritten_cell("x = (", "In[1]", ()) is None
    source = """\
import torch
x = torch.ones(3)
def g(x):
    if x.sum() > 0:
        return x
    return -x
for _ in range(9):
    x = g(x)
"""
    made = rewritten_cell(source, "In[1]", ())
    assert made is not None and str(made) == "GR102 (line 4)"


def test_a_cell_that_ran_many_times_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each run of a notebook would read more sources than the one before."""
    other, here = "# %%grape --json {}\ny = x + 1\n", "%%grape --rewrite\nz = y.item()\n"
    runs = [("In[1]", "x = 1\n"), *((f"In[{n}]", other.format(n)) for n in range(2, 9)), ("In[9]", f"# {here}")]
    monkeypatch.setattr("grape.sessions.past.told.sources", lambda names: tuple(runs))
    seen: list[Any] = []
    monkeypatch.setattr("grape.fixing.at_once.rewritten_cell", lambda *_, others: seen.append(others))
    assert AtOnce().rewritten(here, "In[10]") is None
    assert seen == [[("In[1]", "x = 1\n"), ("In[8]", other.format(8))]]
