"""Which line is blamed for a change of Python state, whatever instructions this version of Python compiles it to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from grape.model import Position
from grape.runtime.guarding.mentions import blamed


def once(a: Any, b: Any) -> Any:
    a.count = 1
    return b


def again(a: Any, b: Any) -> Any:
    a.count = 1
    return max(a, b)


def unpacked(a: Any, b: Any) -> Any:
    first = a.count
    a, b = first, 2
    return b


@pytest.mark.parametrize(
    ("function", "paths", "line"),
    [
        (once, ["a.count"], 1),
        (again, ["a.count"], None),
        (again, ["a.count", "b.count"], 2),
        (unpacked, ["a.count"], None),
        (unpacked, ["first"], None),
        (unpacked, ["max"], None),
        (once, [], None),
    ],
)
def test_a_line_is_blamed_where_no_other_mentions_the_name(
    function: Callable[..., Any], paths: list[str], line: int | None
) -> None:
    first = function.__code__.co_firstlineno
    at = Position(file="cell", line=first, function=function.__name__)
    _, found = blamed(function, paths, at)
    assert found.line - first == (line or 0) and found.file == "cell" and found.function == function.__name__
