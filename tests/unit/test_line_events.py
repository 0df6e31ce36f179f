"""Lines of a cell by events of the interpreter: what each took, and that nothing of them is left."""

from __future__ import annotations

import sys
import threading
import time
from types import CodeType
from typing import Any

import pytest

from grape.model import LineTimes
from grape.profiling import LineEvents, line_events
from grape.tracing import is_watched

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="this Python has no such events")

FILE = "<a cell>"


def replay(run: Any) -> None:
    run()


def burn(milliseconds: float) -> None:
    end = time.perf_counter() + milliseconds / 1e3
    while time.perf_counter() < end:
        pass


def compiled(source: str) -> CodeType:
    code = compile(source, FILE, "exec")
    assert isinstance(code, CodeType)
    return code


def run(*statements: str, **space: Any) -> LineTimes:
    """What is told of a cell of these statements, a line each or more."""
    events = LineEvents(FILE, replay.__code__)
    names = {"burn": burn, "replay": replay, **space}
    assert events.start()
    began, line = time.perf_counter(), 0
    try:
        for source in statements:
            code = compiled("\n" * line + source)
            line += source.count("\n") + 1
            events.statement(code)
            exec(code, names)
    finally:
        events.stop()
    found = events.times((time.perf_counter() - began) * 1e3)
    assert found is not None
    return found


def took(times: LineTimes) -> dict[int, float]:
    return {line.line: line.ms for line in times.lines}


def test_lines_of_a_loop_take_what_they_take_however_short_they_are() -> None:
    found = took(run("for i in range(200):\n    burn(0.1)\n    burn(0.3)"))
    assert found[2] == pytest.approx(20, rel=0.1) and found[3] == pytest.approx(60, rel=0.1)


def test_the_lines_add_up_to_the_cell() -> None:
    found = run("burn(5)", "def f():\n    burn(2)\n    burn(3)", "for i in range(4):\n    f()", "burn(5)")
    assert sum(took(found).values()) == pytest.approx(30, rel=0.1)
    assert took(found)[3] == pytest.approx(8, rel=0.1) and took(found)[4] == pytest.approx(12, rel=0.1)


def test_after_a_call_the_time_is_the_callers_again() -> None:
    found = took(run("def f():\n    return 1", "for i in range(10):\n    f(); burn(2)"))
    assert found[4] == pytest.approx(20, rel=0.1) and found.get(2, 0.0) < 1


def test_after_an_exception_the_time_is_of_the_line_that_caught_it() -> None:
    source = "def f():\n    burn(1)\n    raise ValueError"
    loop = "for i in range(10):\n    try:\n        f()\n    except ValueError:\n        burn(2)"
    found = took(run(source, loop))
    assert found[2] == pytest.approx(10, rel=0.1) and found[8] == pytest.approx(20, rel=0.1)


def test_generators_of_the_cell_take_their_own_time() -> None:
    source = "def items():\n    for i in range(10):\n        burn(1)\n        yield i"
    found = took(run(source, "for x in items():\n    burn(2)"))
    assert found[3] == pytest.approx(10, rel=0.1) and found[6] == pytest.approx(20, rel=0.1)


def test_replays_are_told_apart() -> None:
    found = run("for i in range(10):\n    burn(1)\n    replay(lambda: burn(2))")
    (line,) = (line for line in found.lines if line.replayed_ms)
    assert line.line == 3 and line.replayed_ms == pytest.approx(20, rel=0.15)


def test_other_threads_and_other_code_are_not_told() -> None:
    def elsewhere() -> None:
        thread = threading.Thread(target=exec, args=(compiled("for i in range(50):\n    i"),))
        thread.start()
        thread.join()

    assert set(took(run("for i in range(6):\n    elsewhere()", elsewhere=elsewhere))) == {1, 2}


def test_a_statement_with_too_many_lines_stands_for_what_was_seen_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_events, "_BESIDE_NS", 400 * 40)
    monkeypatch.setattr(line_events, "_SHARE", 0.0)
    found = run("burn(5)", "for i in range(100):\n    burn(0.1)\n    burn(0.3)", "burn(5)")
    assert took(found)[3] == pytest.approx(10, rel=0.2) and took(found)[4] == pytest.approx(30, rel=0.2)
    assert found.looks < 60, "nobody was told of the rest"


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
