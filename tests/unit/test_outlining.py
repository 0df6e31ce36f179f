"""Loops whose bodies are regions, without a shell: what is chosen, split, given back and left alone."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import pickle
import textwrap
import threading
import zlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo  # imported by the first dispatch mode in some versions; it wraps functions of torch for good

from grape.options import Options
from grape.outlining.loop import Loop, _Left
from grape.outlining.run import Run
from grape.render import Report
from grape.rewrite.outlining import RunSource
from grape.runtime import Region
from grape.runtime.accounts.attention import Allowance
from grape.runtime.regions.costs import Costs
from grape.runtime.regions.region_state import LATELY
from grape.sessions import Cell, Session, close_engine, engine

SETUP = """
import torch
torch.manual_seed(0)
w = torch.randn(4, 4) * 0.5
x, h, log = torch.randn(2, 4), torch.zeros(2, 4), []
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()).requires_grad_(False)
"""


def place(cell: str, text: str) -> str:
    """The file name of a cell's code, which depends on the cell; `text` is found there."""
    name = f"<ipython-input-7-{zlib.crc32(cell.encode())}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return name


class Shell:
    """Runs cells as a shell would, under Grape or not."""

    def __init__(self) -> None:
        self.space: dict[str, Any] = {"__name__": "__main__"}
        self.report: Report | None = None
        exec(SETUP, self.space)

    def run(
        self,
        source: str,
        *,
        grape: bool = True,
        name: str = "In[7]",
        typed: str | None = None,
        memory_budget: int | None = None,
    ) -> None:
        """`typed`: the cell as it was typed, where that differs from its Python in the first line."""
        file = place(typed or source, typed or source)
        cell = Cell(name=name, source=source, filename=file)
        session = Session(options=Options(memory_budget=memory_budget), cell=cell, namespace=self.space)
        if grape:
            session.open()
        try:
            for statement in ast.parse(source, file).body:
                tree = ast.Module([statement], [])
                code = compile(tree, file, "exec")
                if grape:
                    session.statement_boundary()
                    code = engine().outliner.compile(tree, file, "exec", 0, self.space) or code
                exec(code, self.space)
        except BaseException:
            session.abandon()
            raise
        if grape:
            self.report = session.close(None)


@pytest.fixture
def shell() -> Iterator[Shell]:
    yield Shell()
    close_engine()


def regions() -> list[Region]:
    return engine().interceptor.outlined


def told() -> list[tuple[str, int, int | None, str | None, bool]]:
    """Name, first and last line, refusal and whether it replays, of each region of a loop."""
    return [(r.name, r.at.line, r.end_line, r.refused and r.refused.code, bool(r.replays)) for r in regions()]


def loops() -> list[Loop]:
    return list(engine().outliner._loops.values())


BODY = "    h = torch.tanh(x @ w + h)\n    x = net(h) * 0.5 + x\n"


def test_a_tensor_that_each_run_of_the_cell_makes_anew_needs_no_new_graphs(shell: Shell) -> None:
    """The loop only reads it, so it might be taken for one that is always the same."""
    captures = []
    for _ in range(7):
        shell.run(f"base = torch.randn(2, 4)\nfor i in range(30):\n    x = torch.tanh(base @ w + h) * 0.5 + x\n{BODY}")
        (region,) = regions()
        captures.append(len(region.captures.costs.durations_ms))
    assert region.refused is None and region.replays > 60
    assert captures[-1] == captures[3], captures


def test_a_body_is_one_region_that_replays(shell: Shell) -> None:
    shell.run(f"for i in range(30):\n{BODY}")
    assert told() == [("loop at line 1", 2, 3, None, True)]
    assert regions()[0].replays > 10


def test_graphs_serve_the_next_run_of_the_cell(shell: Shell) -> None:
    for _ in range(3):
        shell.run(f"x, h = torch.randn(2, 4), torch.zeros(2, 4)\nfor i in range(30):\n{BODY}")
    (region,) = regions()
    assert region.captures.costs.durations_ms
    assert region.replays_in_run > 20
    assert len(region.captures.costs.durations_ms) <= 4


def test_a_host_read_inside_a_function_splits_the_run_at_its_call(shell: Shell) -> None:
    read = "def norm(x):\n    sizes = x.norm(dim=1)\n    return x / sum(sizes.tolist())\n"
    shell.run(f"{read}for i in range(30):\n{BODY}    x = norm(x)\n    y = torch.relu(x) @ w\n    z = y * 2 + x\n")
    assert told() == [
        ("loop at line 4", 5, 9, "GR101", False),
        ("loop at line 4, from line 5", 5, 6, None, True),
        ("loop at line 4, from line 8", 8, 9, None, True),
    ]


def test_an_effect_inside_a_function_splits_the_run_at_its_call(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    loud = "def loud(x):\n    print('.', end='')\n    return x * 2\n"
    shell.run(f"{loud}for i in range(30):\n{BODY}    x = loud(x) * 0.25\n")
    assert capsys.readouterr().out == "." * 30
    assert told()[0][3:] == ("GR404", False)
    assert told()[1] == ("loop at line 4", 5, 6, None, True)


def test_a_counter_splits_the_run_and_is_named(shell: Shell) -> None:
    shell.run(f"for i in range(40):\n{BODY}    y = x * (i + 1) + 0.5\n    z = torch.tanh(h) + x * 2\n")
    refused = regions()[0].refused
    assert refused is not None
    assert (refused.code, refused.why) == ("GR403", "`i` is no tensor, and changes at each iteration")
    assert refused.at is not None
    assert refused.at.line == 4
    assert [(line, last, replays) for _, line, last, _, replays in told()[1:]] == [(2, 3, True), (5, 5, True)]


def test_an_item_that_a_counter_picks_is_what_the_region_is_given(shell: Shell) -> None:
    shell.run("data = [(torch.randn(2, 4), torch.randn(2, 4)) for _ in range(5)]\nx = torch.zeros(2, 4)")
    shell.run(f"for i in range(40):\n    a, b = data[i % 5]\n{BODY}    x = torch.tanh(x * a + b)\n")
    assert told() == [("loop at line 1", 3, 5, None, True)]
    shell.run("table = torch.randn(9, 4)")
    shell.run(f"for i in range(40):\n    a = table[i % 9]\n{BODY}    x = torch.tanh(x * a)\n")
    assert ("GR403", 2) in [(code, line) for _, line, _, code, _ in told()]


def test_plain_counting_stays_out_without_a_refusal(shell: Shell) -> None:
    shell.run(f"n = 0\nfor i in range(30):\n    n += 1\n    k = n * 2\n{BODY}    k = k + 1 - n\n")
    assert told() == [("loop at line 2", 5, 6, None, True)]
    assert (shell.space["n"], shell.space["k"]) == (30, 31)


TRAINED = """
p = torch.nn.Parameter(torch.ones(4, 4))
o = torch.optim.Adam([p], lr=0.1)
for i in range(40):
    o.zero_grad()
    loss = (x @ p).tanh().square().mean()
    loss.backward()
    o.step()
    log.append(i)
"""


def test_the_loop_of_a_cell_that_took_the_advice_is_whole(shell: Shell) -> None:
    shell.run(TRAINED)
    assert shell.report is not None
    assert [(r.name, r.outcome) for r in shell.report.regions if r.name.startswith("loop")] == [
        ("loop at line 4", "refused"),
        ("loop at line 4 #2", "replayed"),
    ]
    (advice,) = [f.advice for f in shell.report.findings if f.at is not None and f.at.line == 8]
    assert advice is not None and advice.startswith("write `o = torch.optim.Adam([p], lr=0.1, fused=True)`")
    shell.run(TRAINED.replace("lr=0.1", "lr=0.1, fused=True"))
    assert told() == [("loop at line 4", 5, 8, None, True)]
    assert all("o.step" not in (f.advice or "") for f in shell.report.findings)


def test_a_function_whose_optimizer_is_made_anew_is_tried_whole(shell: Shell) -> None:
    make = "p = torch.nn.Parameter(torch.ones(4, 4))\no = torch.optim.Adam([p], lr=0.1)\n"
    loop = (
        TRAINED.partition("0.1)\n")[2].replace("i in range(40)", "i, a in enumerate([x] * 40)").replace("(x @", "(a @")
    )
    shell.run("def train():\n" + textwrap.indent(loop, "    "), grape=False)
    shell.run(make, grape=False)
    shell.run("train()")
    assert [bool(r.replays) for r in regions() if r.refused is None] == [True]
    assert not any(r.refused is None and (r.at.line, r.end_line) == (3, 6) for r in regions())
    shell.run(make.replace("0.1", "0.1, fused=True"), grape=False)
    shell.run("train()\ntrain()")
    assert ("loop at line 2", 3, 6, None, True) in told()
    shell.run("train()")
    assert [(first, last, replays) for _, first, last, refused, replays in told() if not refused] == [(3, 6, True)]


def test_another_option_is_no_change_of_the_cell(shell: Shell) -> None:
    shell.run(TRAINED, typed=f"%%grape\n{TRAINED[1:]}")
    (served,) = [r for r in regions() if r.refused is None]
    shell.run(TRAINED, typed=f"%%grape --no-widget\n{TRAINED[1:]}")
    assert [r for r in regions() if r.refused is None] == [served]


def test_a_split_run_gives_up_where_nothing_is_left(shell: Shell) -> None:
    shell.run("p = torch.nn.Parameter(w)\nfor i in range(30):\n    y = x @ p\n    z = (y * 2 + 1).sum()\n")
    assert told() == [("loop at line 2", 3, 4, "GR405", False)]
    assert [loop.live for loop in loops()] == [False]


@pytest.mark.parametrize(
    "loop",
    [
        "for i in range(100_000):\n    t = t + i * 2\n    k = t % 7 + 1\n",
        "while t < 200_000:\n    t = t + 1 * 2\n    k = t % 7 + 1\n",
        "for i in range(1000):\n    for j in (1, 2, 3):\n        t = t + i * 2\n        k = t % 7 + 1\n",
    ],
)
def test_a_loop_without_tensors_leaves_its_head(shell: Shell, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []
    turn = Loop._turn
    monkeypatch.setattr(Loop, "_turn", lambda self, *, sees_end: turns.append(self) or turn(self, sees_end=sees_end))
    shell.run(f"t = 0\n{loop}")
    assert len(turns) <= 8
    assert not regions()
    assert not any(one.live for one in loops() if one in turns)


def test_a_module_that_replays_keeps_its_calls(shell: Shell) -> None:
    shell.run("deep = torch.nn.Sequential(net, net, net)\nfor i in range(30):\n    y = deep(x)\n")
    module = next(region for region in engine().interceptor.regions if region.name == "Sequential (deep)")
    assert module.replays
    shell.run("for i in range(30):\n    y = deep(x) * 2\n    z = y + 1 - x\n")
    assert not regions()
    assert module.replays_in_run > 20


FUNCTION = """\
def decode(x, steps):
    h = torch.zeros_like(x)
    for i in range(steps):
        h = torch.tanh(x @ w + h)
        x = net(h) * 0.5 + x
        log.append(i)
    return x
"""


def test_a_function_has_its_own_code_unless_its_loops_replay(shell: Shell) -> None:
    shell.run(FUNCTION, grape=False)
    decode = shell.space["decode"]
    expected, code = decode(shell.space["x"], 50), decode.__code__
    shell.run("y = decode(x, 2)")
    assert decode.__code__ is code
    session = Session(options=Options(), cell=Cell(name="In[8]", source="", filename="x"), namespace=shell.space)
    session.open()
    results = [decode(shell.space["x"], 50) for _ in range(3)]
    assert inspect.getsource(decode) == FUNCTION
    session.abandon()
    assert all(result.equal(expected) for result in results)
    assert told() == [("loop at line 3", 4, 5, None, True)]
    assert decode.__code__ is not code
    before = regions()[0].replays
    assert decode(shell.space["x"], 50).equal(expected)
    assert regions()[0].replays == before + 50
    engine().undo()
    assert decode.__code__ is code
    assert decode(shell.space["x"], 50).equal(expected)


def test_a_function_beside_its_imports_is_hoisted(shell: Shell) -> None:
    """Compiled with them, as a file is, it has other code than compiled alone, as in a cell (CPython 3.11)."""
    cell = "import math\nimport torch.nn.functional as F\n" + FUNCTION.replace("h = ", "h = F.relu(x) + ", 1)
    shell.run(cell, grape=False)
    shell.run("y = [decode(x, 50) for _ in range(3)]")
    assert [(line, replays) for _, line, _, _, replays in told()] == [(6, True)]


def test_a_function_of_other_source_is_left_alone(shell: Shell) -> None:
    shell.run(FUNCTION, grape=False)
    decode = shell.space["decode"]
    code = decode.__code__
    place(FUNCTION, FUNCTION.replace("0.5", "0.7"))
    session = Session(options=Options(), cell=Cell(name="In[8]", source="", filename="x"), namespace=shell.space)
    session.open()
    for _ in range(3):
        decode(shell.space["x"], 50)
    assert not regions()
    session.abandon()
    assert decode.__code__ is code


def test_recursion_and_other_threads_run_as_written(shell: Shell) -> None:
    source = """\
def walk(x, deep):
    for i in range(40):
        h = torch.tanh(x @ w)
        x = h * 0.5 + (walk(h, deep - 1) if deep and i % 13 == 5 else h) * 0.1
    return x
plain = walk(x, 2)
"""
    shell.run(source, grape=False)
    expected = shell.space["plain"]
    others: list[torch.Tensor] = []
    shell.space["others"] = others
    shell.space["thread"] = lambda: threading.Thread(
        target=lambda: others.append(shell.space["walk"](shell.space["x"], 2))
    )
    shell.run(f"{source}for _ in range(3):\n    t = thread(); t.start()\n    y = walk(x, 2)\n    t.join()\n")
    assert shell.space["y"].equal(expected)
    assert len(others) == 3
    assert all(one.equal(expected) for one in others)


def test_a_call_inside_a_run_of_the_same_run_leaves_its_values_alone(shell: Shell) -> None:
    """The inner call has another layer; the statement behind it needs the outer one's."""
    source = """\
layers = [torch.nn.Linear(4, 4).requires_grad_(False) for _ in range(3)]
def descend(layers, x):
    layer = layers[0]
    for _ in range(12):
        x = x * 0.5 + (descend(layers[1:], x) if len(layers) > 1 else torch.tanh(x)) * 0.1
        x = torch.tanh(layer(x)) * 0.5
    return x
y = descend(layers, x)
"""
    torch.manual_seed(3)
    shell.run(source, grape=False)
    expected = shell.space["y"]
    torch.manual_seed(3)
    shell.run(source)
    assert shell.space["y"].equal(expected)


def test_a_split_run_of_a_function_hands_names_from_part_to_part(shell: Shell) -> None:
    """`a` and `b` are of no use to the rest of the function."""
    source = """\
def walk(x):
    for i in range(40):
        a = torch.tanh(x @ w) * 0.5
        b = a.sum(1).tolist()
        x = torch.relu(a @ w) + a * 2 - b[0] * 0
    return x
y = walk(x)
"""
    shell.run(source, grape=False)
    expected = shell.space["y"]
    shell.run(source)
    assert shell.space["y"].equal(expected)
    assert any(replays for *_, replays in told()), told()


NOTHING = """\
for i in range(40):
    h = torch.tanh(x @ w) * 0.5
    best = None
    x = torch.relu(h @ w) + h
    log.append(best)
"""
WALK = f"def walk(x):\n{textwrap.indent(NOTHING, '    ')}    return x\nx = walk(x)\n"


@pytest.mark.parametrize("source", [f"{NOTHING}    del best\n", WALK])
def test_a_name_that_is_bound_to_none_is_bound(shell: Shell, source: str) -> None:
    """It is unbound before: among the names of a function, or deleted at the end of each iteration."""
    shell.run(source, grape=False)
    expected = shell.space["x"]
    exec(SETUP, shell.space)
    shell.run(source)
    assert shell.space["x"].equal(expected) and shell.space["log"] == [None] * 40
    assert any(replays for *_, replays in told()), told()


def test_what_heads_of_loops_leave_is_taken_last_in_first_out() -> None:
    left = _Left()
    left.put("outer")
    left.put("inner")
    assert [left.take(), left.take()] == ["inner", "outer"]


class _Ending:
    """An iterator whose end runs the loop that it was for once more."""

    def __init__(self, again: Callable[[], None]) -> None:
        self._items, self._again = iter([1, 2]), again

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(self._items)

    def __del__(self) -> None:
        self._again()


def test_a_finalizer_between_the_head_of_a_loop_and_its_rest() -> None:
    loop = Loop(lambda loop: loop.live)
    loop.runs.append(Run(SimpleNamespace(), RunSource(statements=(), changing=frozenset(), loop=0, loop_line=1)))  # type: ignore[arg-type]
    inner: list[list[int]] = []

    def walk(items: Any) -> list[int]:
        taken = []
        head = loop.head(items)
        del items
        for item in head:
            taken.append(item)
        del head
        for item in loop.rest():
            taken.append(item)
        return taken

    def again() -> None:
        loop.live = False
        inner.append(walk([7, 8]))

    outer = walk(_Ending(again))
    assert (outer, inner) == ([1, 2], [[7, 8]])


def test_an_iterator_that_is_not_iterable(shell: Shell) -> None:
    source = """\
class Bare:
    n = 0
    def __next__(self):
        self.n += 1
        if self.n > 9:
            raise StopIteration
        return self.n
class Source:
    def __iter__(self):
        return Bare()
seen = []
for n in Source():
    seen.append(n)
    t = n * 2 + 1
"""
    shell.run(source)
    assert shell.space["seen"] == [*range(1, 10)]


def test_code_that_is_sent_away_runs_as_written(shell: Shell) -> None:
    loop: Any = pickle.loads(pickle.dumps(Loop(lambda loop: True)))
    assert list(loop.head([1, 2])) == []
    assert list(loop.rest()) == [1, 2]
    assert (loop.stays(), loop.left(), loop.live) == (False, True, False)
    shell.run(f"for i in range(30):\n{BODY}")
    run: Any = pickle.loads(pickle.dumps(loops()[0].runs[0]))
    assert not isinstance(run, Run)
    assert run.live is False


def test_reset_forgets_loops(shell: Shell) -> None:
    shell.run(f"for i in range(30):\n{BODY}")
    engine().reset()
    assert not loops()
    assert not engine().interceptor.regions
    shell.run(f"for i in range(30):\n{BODY}")
    assert told() == [("loop at line 1", 2, 3, None, True)]


@pytest.mark.parametrize(
    "broken", ["grape.outlining.run.divide", "grape.outlining.run.Run._learn", "grape.outlining.parts.pure_code"]
)
def test_own_failure_never_breaks_the_loop(shell: Shell, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Shell()
    source = f"for i in range(30):\n{BODY}    log.append(x)\n"
    plain.run(source, grape=False)

    def fail(*args: Any) -> Any:
        raise LookupError("sabotage")

    monkeypatch.setattr(broken, fail)
    shell.run(source)
    assert all(one.equal(other) for one, other in zip(shell.space["log"], plain.space["log"], strict=True))


def test_a_function_named_as_runs_were(shell: Shell) -> None:
    plain = Shell()
    source = (
        "def run(x):\n    return torch.tanh(x) * 2\n"
        "for i in range(30):\n    y = run(x) + 1\n    x = y * 0.1\n"
        "def rolled(x):\n    for i in range(30):\n        run = torch.tanh(x @ w)\n        x = run * 0.5\n"
        "    return run\n"
        "log.append(rolled(x)); log.append(x)\n"
    )
    plain.run(source, grape=False)
    shell.run(source)
    assert all(one.equal(other) for one, other in zip(shell.space["log"], plain.space["log"], strict=True))
    assert told()[0] == ("loop at line 3", 4, 5, None, True)


def test_what_a_name_stands_for_outside_stays_the_same_object(shell: Shell) -> None:
    shell.run(
        "table = {'seen': []}\n"
        "for i in range(30):\n    pair = (torch.tanh(x) * 2, table)\n    x = pair[0] * 0.1\n"
        "    pair[1]['seen'].append(i)\n"
    )
    assert shell.space["table"]["seen"] == list(range(30))


def test_a_result_that_retains_its_gradient(shell: Shell) -> None:
    shell.run(
        "for i in range(30):\n    leaf = x.clone().requires_grad_(True)\n    inner = torch.tanh(leaf) * 2\n"
        "    inner.retain_grad()\n    (inner * inner).sum().backward()\n    x = inner.grad * 0.1\n"
        "    log.append((inner.grad * 0.1).equal(x) and inner.retains_grad)\n"
    )
    assert shell.space["log"] == [True] * 30


def test_a_count_of_executions_is_true_or_not_claimed(shell: Shell) -> None:
    body = "    y = torch.tanh(x @ w)\n    log.append(y.mean().item())\n    x = net(y) * 0.5 + x\n"
    for count, said in ((96, "at each of 96 executions"), (300, "at each execution")):
        shell.run(f"log.clear()\nfor i in range({count}):\n{body}")
        report = shell.report
        assert report is not None
        (found,) = [finding for finding in report.findings if finding.code == "GR101"]
        assert found.message == f"`y.mean().item()` would make the CPU wait for a GPU {said}"
        assert ("executions" in dict(found.evidence)) == (count == 96)


def test_of_a_cell_that_runs_again_its_present_name_is_told_and_no_earlier_count(shell: Shell) -> None:
    source = "for i in range(steps):\n    y = torch.tanh(x @ w)\n    log.append(y.mean().item())\n    x = net(y) + x\n"
    for steps, said in ((20, "at each of 20 executions"), (40, "at each execution")):
        shell.space["steps"] = steps
        shell.run(source, name=f"In[{steps}]")
        assert shell.report is not None
        (found,) = [finding for finding in shell.report.findings if finding.code == "GR101"]
        assert found.message == f"`y.mean().item()` would make the CPU wait for a GPU {said}"
        assert found.at is not None and found.at.file == f"In[{steps}]"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_worker_runs_as_written(shell: Shell) -> None:
    told: list[bytes] = []

    def in_a_worker(work: Callable[[], Any]) -> None:
        before = [(region.calls, region.replays) for region in regions()]
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            work()
            same = [(region.calls, region.replays) for region in regions()] == before
            os.write(writer, b"as written" if same else b"as regions")
            os._exit(0)
        os.waitpid(child, 0)
        told.append(os.read(reader, 20))

    shell.space["in_a_worker"] = in_a_worker
    shell.run(
        "def roll(x):\n    for i in range(60):\n        h = torch.tanh(x @ w)\n        x = h * 0.5 + x\n    return x\n"
        "for k in range(4): roll(x)\n"
        "in_a_worker(lambda: roll(x))\n"
    )
    assert any(region.replays for region in regions())
    assert told == [b"as written"]


def test_a_loop_that_gets_the_floor_inside_a_traced_function_is_captured(shell: Shell) -> None:
    """The tracer lies muted below the capture; nothing that is made for the capture lifts that by the way."""
    shell.run(
        "own = torch.nn.Linear(4, 4)\nopt = torch.optim.SGD(own.parameters(), lr=0.1)\n"
        "def train():\n    for i in range(80):\n        opt.zero_grad()\n        loss = own(x).square().mean()\n"
        "        loss.backward()\n        log.append(i)\n        opt.step()\n"
        "train()\n"
    )
    assert [(name, code, replays) for name, _, _, code, replays in told()] == [("loop at line 4", None, True)]


def test_times_of_a_refused_function_hold_no_work_of_grapes(shell: Shell) -> None:
    """A call in which a module was looked at, or replayed, does not tell what the function takes."""
    define = "def f(x):\n    y = {}\n    log.append(y.sum().item())\n    return y + y\n"
    shell.run("deep = torch.nn.Sequential(net, net, net)\n")
    times = {}
    for body in ("deep(x)", "x @ w + x"):
        shell.run(define.format(body) + "for i in range(40):\n    y = f(x)\n")
        found = {region.name: region for region in engine().interceptor.regions}
        assert found["f"].refused is not None and found["f"].calls == 40, found["f"].refused
        times[body] = len(found["f"].host_ms)
    assert found["Sequential (deep)"].replays and times["deep(x)"] < 5 and times["x @ w + x"] > 30, times


@pytest.mark.parametrize("budget", [0, 100])
def test_a_loop_without_room_says_so_and_is_tried_again(shell: Shell, budget: int) -> None:
    source = f"for i in range(30):\n{BODY}"
    shell.run(source)
    (region,) = regions()
    for number in (8, 9):
        shell.run(source, memory_budget=budget, name=f"In[{number}]")
        assert shell.report is not None
        held = shell.report.to_dict()
        (starved,) = [finding for finding in held["findings"] if finding["code"] == "GR405"]
        assert "the memory budget of" in starved["message"] and starved["file"] == f"In[{number}]"
        (row,) = [row for row in held["regions"] if row["name"] == "loop at line 1"]
        assert (row["outcome"], row["calls"], row["replays"]) == ("refused", 30, 0)
    shell.run(source)
    assert regions() == [region] and region.refused is None and region.replays_in_run > 0


def test_a_functions_loop_without_room_says_so_in_each_cell(shell: Shell) -> None:
    indented = textwrap.indent(BODY, "    ")
    shell.run(f"def fill(x, h):\n    for i in range(30):\n{indented}    return x\n", grape=False, name="In[6]")
    for budget in (None, None, 100, 100):
        shell.run("y = fill(x, h)\n", memory_budget=budget)
    assert shell.report is not None
    held = shell.report.to_dict()
    (row,) = [row for row in held["regions"] if row["name"] == "loop at line 2"]
    assert (row["outcome"], row["reason"], row["calls"]) == ("refused", "GR405", 30)
    shell.run("y = fill(x, h)\n")
    (region,) = regions()
    assert region.refused is None and region.replays_in_run > 0


KEPT = "x, h = torch.randn(2, 4), torch.zeros(2, 4)\nfor i in range(60):\n" + BODY + "kept = x, h\n"


@pytest.mark.parametrize("earned", [True, False])
def test_results_of_the_last_run_are_in_the_way_of_no_later_one(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, *, earned: bool
) -> None:
    """They are kept until the cell has ended once more, so that a graph which writes there could serve every second
    run. From the third run on little is left for captures, but graphs that have saved enough get another one.
    """
    with monkeypatch.context() as first:
        first.setattr(Costs, "has_room", lambda *_: False)
        shell.run(KEPT)
    shell.run(KEPT)
    monkeypatch.setattr(Session, "_allowance", lambda _: Allowance(share=0.02, beside_ms=5.0))
    monkeypatch.setattr(Costs, "have_earned_another", lambda _, shape: earned and bool(shape.entries))
    served = []
    for _ in range(5):
        shell.run(KEPT)
        served.append(regions()[0].replays_in_run)
    assert (min(served) > 50) == earned, served


def test_graphs_have_earned_another_that_saved_more_than_all_take(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        shell.run(KEPT)
    (region,) = regions()
    costs, shape = region.captures.costs, next(shape for shape in region.shapes.values() if shape.entries)
    replays = sum(entry.replays for entry in shape.entries)
    for entry in shape.entries:
        entry.replay_ms = 1.0
    costs.durations_ms[:] = [10.0, 20.0, 30.0]  # a further one is expected to take 20
    monkeypatch.setattr(Costs, "eager_ms", lambda *_: [1.0 + 79.0 / replays])
    assert not costs.have_earned_another(shape)
    monkeypatch.setattr(Costs, "eager_ms", lambda *_: [1.0 + 81.0 / replays])
    assert costs.have_earned_another(shape)
    monkeypatch.setattr(Costs, "eager_ms", lambda *_: [])
    assert not costs.have_earned_another(shape)


def test_looks_for_another_graph_end(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none is made, whatever the reason, a cell that has spent its share is not looked at for all of its run."""
    for _ in range(3):
        shell.run(KEPT)
    (region,) = regions()
    monkeypatch.setattr(Costs, "have_earned_another", lambda *_: True)
    region.begin_run()
    region.blocked_at = region.calls
    assert sum(region.needs_another_graph() for _ in range(50)) == 2 * LATELY
