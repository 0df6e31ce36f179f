"""Lines of a cell by events of the interpreter: what each took, and that nothing of them is left."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest

from grape.model import LineTimes
from grape.profiling import LineEvents, LineMemory, allocated_by, line_events
from grape.tracing import is_watched

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="this Python has no such events")

FILE = "<a cell>"


def replay(run: Any) -> None:
    run()


class Burnt(dict[int, float]):
    """Milliseconds that calls took, by the line that they stand at."""

    def __call__(self, milliseconds: float, line: int) -> None:
        began = time.perf_counter()
        while time.perf_counter() < began + milliseconds / 1e3:
            pass
        self[line] = self.get(line, 0.0) + (time.perf_counter() - began) * 1e3


class Clock:
    """One that stands still but for what the cell waits, and for what it takes to read it."""

    def __init__(self, read_ns: int = 0) -> None:
        self.ns = 0
        self.read_ns = read_ns

    def __call__(self) -> int:
        self.ns += self.read_ns
        return self.ns

    def wait(self, milliseconds: float) -> None:
        self.ns += round(milliseconds * 1e6)


def compiled(source: str) -> CodeType:
    code = compile(source, FILE, "exec")
    assert isinstance(code, CodeType)
    return code


def run(
    *statements: str,
    memory: LineMemory | None = None,
    own_ns: Callable[[], int] | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
    **space: Any,
) -> tuple[LineTimes, dict[int, float]]:
    """What is told of a cell of these statements, one below the other, and what its calls of `burn` took."""
    events, burnt = LineEvents(FILE, replay.__code__, memory=memory, own_ns=own_ns, clock=clock), Burnt()
    names = {"burn": burnt, "replay": replay, **space}
    assert events.start()
    line = 0
    try:
        for source in statements:
            code = compiled("\n" * line + source)
            line += source.count("\n") + 1
            events.statement(code)
            exec(code, names)
    finally:
        events.stop()
    found = events.times(sum(events._line_ns.values()) / 1e6)
    assert found is not None
    return found, burnt


def took(times: LineTimes) -> dict[int, float]:
    return {line.line: line.ms for line in times.lines}


def agree(found: tuple[LineTimes, dict[int, float]]) -> bool:
    """Each line took what was burnt there, and no other line anything worth a word."""
    times, burnt = found
    return all(ms == pytest.approx(burnt.get(line, 0.0), rel=0.05, abs=1.0) for line, ms in took(times).items())


def test_lines_of_a_loop_take_what_they_take_however_short_they_are() -> None:
    assert agree(run("for i in range(200):\n    burn(0.1, 2)\n    burn(0.3, 3)"))


def test_the_lines_add_up_to_the_cell() -> None:
    found = run("burn(5, 1)", "def f():\n    burn(2, 3)\n    burn(3, 4)", "for i in range(4):\n    f()", "burn(5, 7)")
    assert agree(found) and found[0].total_ms == pytest.approx(sum(found[1].values()), rel=0.05)


def test_after_a_call_the_time_is_the_callers_again() -> None:
    assert agree(run("def f():\n    return 1", "for i in range(10):\n    f(); burn(2, 4)"))


def test_after_an_exception_the_time_is_of_the_line_that_caught_it() -> None:
    raises = "def f():\n    burn(1, 2)\n    raise ValueError"
    assert agree(run(raises, "for i in range(10):\n    try:\n        f()\n    except ValueError:\n        burn(2, 8)"))


def test_generators_of_the_cell_take_their_own_time() -> None:
    makes = "def items():\n    for i in range(10):\n        burn(1, 3)\n        yield i"
    assert agree(run(makes, "for x in items():\n    burn(2, 6)"))


def test_a_lambda_at_its_line_is_its_lines_and_makes_no_events() -> None:
    clock = Clock()
    loop = "for i in range(4):\n    sorted(range(500), key=lambda n: wait(0.01) or n)\n    sum(wait(1) or 0 for _ in x)"
    calls = "f = lambda: wait(1)\nfor i in range(3):\n    f()\n    wait(0.5)"
    found, _ = run(loop, calls, clock=clock, wait=clock.wait, x=range(300))
    assert took(found) == {1: 0.0, 2: 20.0, 3: 1200.0, 4: 3.0, 5: 0.0, 6: 0.0, 7: 1.5}, "called elsewhere it is a line"
    assert found.looks < 60


def test_what_grape_takes_is_of_no_line() -> None:
    """It is booked once the call is over, around which it went by."""
    clock, own = Clock(), [0]

    def watched(function: Any) -> None:
        clock.wait(3)
        try:
            function()
        finally:
            clock.wait(2)
            own[0] += 5_000_000

    def traced(milliseconds: float) -> None:
        clock.wait(milliseconds)
        own[0] += round(milliseconds * 1e6)

    functions = "def f():\n    wait(1)\n    wait(2)\ndef g():\n    wait(1)\n    raise ValueError"
    calls = "    watched(f)\n    wait(4)\n    try:\n        watched(g)\n    except ValueError:\n        traced(7)"
    space = {"watched": watched, "traced": traced, "wait": clock.wait}
    found, _ = run(functions, f"for i in range(5):\n{calls}", own_ns=lambda: own[0], clock=clock, **space)
    times = {line: ms for line, ms in took(found).items() if ms}
    assert times == {2: 5.0, 3: 10.0, 5: 5.0, 9: 20.0}


def test_replays_are_told_apart() -> None:
    burnt = Burnt()
    found, mine = run("for i in range(10):\n    burn(1, 2)\n    replay(work)", work=lambda: burnt(2, 3))
    (line,) = (line for line in found.lines if line.replayed_ms)
    assert line.line == 3 and line.replayed_ms == pytest.approx(burnt[3], rel=0.05)
    assert took(found)[2] == pytest.approx(mine[2], rel=0.05, abs=0.5)


class Books:
    """An allocator's, of which the cell takes and gives back bytes, and a count of captures."""

    def __init__(self) -> None:
        self.held: int | None = 1000
        self.captures = self.reads = 0

    def read(self) -> int | None:
        self.reads += 1
        return self.held

    def take(self, size: int, captures: int = 0) -> None:
        assert self.held is not None
        self.held += size
        self.captures += captures

    def memory(self, **options: Any) -> LineMemory:
        return LineMemory(self.read, lambda: self.captures, **options)


def grown(times: LineTimes) -> dict[int, int | None]:
    return {line.line: line.grown_bytes for line in times.lines}


def test_a_line_lets_memory_grow_by_what_its_largest_pass_left() -> None:
    books = Books()
    cell = "for i in range(12):\n    take(10 * i)\n    take(-10 * i); burn(0.1, 3)\n    burn(0.1, 4)"
    assert grown(run(cell, memory=books.memory(), take=books.take)[0]) == {1: 0, 2: 110, 3: 0, 4: 0}


def test_memory_is_of_the_line_that_was_reached_last() -> None:
    books = Books()
    function = "def f(n):\n    take(n)\n    burn(0.1, 3)"
    found = run(function, "for i in range(12):\n    f(5)\n    take(7)", memory=books.memory(), take=books.take)[0]
    assert {2: 5, 3: 0, 5: 0, 6: 7}.items() <= grown(found).items()


def test_what_a_graph_holds_is_of_no_line() -> None:
    books = Books()
    cell = "for i in range(12):\n    take(1000, 1); burn(0.1, 2)\n    replay(held)\n    take(3)"
    found = grown(run(cell, memory=books.memory(), take=books.take, held=lambda: books.take(500))[0])
    assert found[2] is None and found[3] == 0 and found[4] == 3


def test_where_nothing_is_known_nothing_is_told() -> None:
    books = Books()
    books.held = None
    cell = "for i in range(12):\n    burn(0.1, 2)"
    assert set(grown(run(cell, memory=books.memory())[0]).values()) == {None}
    assert set(grown(run(cell)[0]).values()) == {None}


def test_books_are_read_for_as_long_as_that_is_cheap() -> None:
    now, books = [0], Books()

    def read() -> int | None:
        now[0] += 100_000
        return books.read()

    memory = LineMemory(read, lambda: 0, clock=lambda: now[0])
    for _ in range(1000):
        memory.passed(1, now[0])
    assert books.reads <= 41 and memory.own_ns <= 4_200_000, "of a short cell"
    now[0] += 1_000_000_000
    for _ in range(1000):
        memory.passed(1, now[0])
    assert 80 < books.reads <= 95, "half a percent of a second"


def test_the_allocator_is_asked_on_the_gpu_alone() -> None:
    import torch

    assert allocated_by(torch.device("cpu")) is None
    read = allocated_by(torch.device("cuda"))
    assert read is not None
    if not torch.cuda.is_initialized():
        assert read() is None, "nothing is initialized for it"


def test_other_threads_and_other_code_are_not_told() -> None:
    def elsewhere() -> None:
        thread = threading.Thread(target=exec, args=(compiled("for i in range(50):\n    i"),))
        thread.start()
        thread.join()

    assert set(took(run("for i in range(6):\n    elsewhere()", elsewhere=elsewhere)[0])) == {1, 2}


def test_a_statement_with_too_many_lines_stands_for_what_was_seen_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_events, "_BESIDE_NS", 0)
    monkeypatch.setattr(line_events, "_SHARE", 0.0)
    clock = Clock(read_ns=100)
    loop = "for i in range(100):\n    wait(0.1)\n    wait(0.3)"
    found, _ = run("wait(5)", loop, "wait(5)", clock=clock, wait=clock.wait)
    assert found.total_ms == pytest.approx(50.0, rel=1e-3), "nothing is lost, and no event is of a line"
    each = {1: 5.0, 2: 0.0, 3: 10.0, 4: 30.0, 5: 5.0}
    assert took(found) == {line: pytest.approx(ms, rel=0.03, abs=1e-3) for line, ms in each.items()}
    assert found.looks < 120, "nobody was told of the rest"


def test_nothing_is_left_and_nobody_is_taken_for_a_debugger() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    code, known = compiled("x = 1"), [monitoring.get_tool(tool) for tool in range(6)]
    events = LineEvents(FILE, replay.__code__)
    assert events.start() and not is_watched()
    events.statement(code)
    exec(code)
    tool = next(tool for tool in range(6) if monitoring.get_tool(tool) == "grape")
    assert monitoring.get_local_events(tool, code)
    events.stop()
    assert [monitoring.get_tool(tool) for tool in range(6)] == known
    monitoring.use_tool_id(tool, "somebody")
    try:
        assert not monitoring.get_local_events(tool, code)
        assert not monitoring.get_local_events(tool, replay.__code__)
        assert is_watched()
    finally:
        monitoring.free_tool_id(tool)


def test_where_no_number_is_free_there_are_no_events() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    taken = [tool for tool in (3, 4) if monitoring.get_tool(tool) is None]
    for tool in taken:
        monitoring.use_tool_id(tool, "somebody")
    try:
        assert not LineEvents(FILE, replay.__code__).start()
    finally:
        for tool in taken:
            monitoring.free_tool_id(tool)


def test_code_runs_as_it_would(capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, Any] = {}
    run("for i in range(20):\n    total = i", "def f(n):\n    return n + total", "print(f(1))", space=space)
    assert capsys.readouterr().out == "20\n"
