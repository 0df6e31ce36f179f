"""What is seen of a cell's first run beside the streams that serve it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from grape.sessions.streamed.first_look import FirstLook


@pytest.mark.parametrize(
    ("work_ms", "captures_ms", "expected"), [(100.0, (30.0, 10.0), 60.0), (20.0, (30.0,), 0.0), (50.0, (), 50.0)]
)
def test_captures_are_no_line_s_time(work_ms: float, captures_ms: tuple[float, ...], expected: float) -> None:
    look = object.__new__(FirstLook)
    given: list[float] = []
    look._lines = SimpleNamespace(times=lambda ms, run, before: given.append(ms))  # type: ignore[assignment]
    streams = tuple(SimpleNamespace(capture_ms=ms) for ms in captures_ms)
    look.times(SimpleNamespace(work_ms=work_ms), SimpleNamespace(streams=streams))  # type: ignore[arg-type]
    assert given == [expected]
