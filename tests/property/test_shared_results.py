"""Random programs whose results share containers with each other, with arguments and with what lies outside: a replay
gives the same structure as the plain call, of the very objects that come from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grape
from grape.runtime.guarding.structure import flatten

OUTSIDE: list[Any] = [[(1, 2), ["q"]], {"t": ("a", (3,))}, ("only", ["in"])]
NUMBER = st.floats(0, 1, exclude_max=True)
STEPS = st.lists(st.tuples(st.integers(0, 5), NUMBER, NUMBER), min_size=2, max_size=8)


def program(steps: list[tuple[int, float, float]]) -> Callable[[torch.Tensor, list[Any], dict[str, Any]], Any]:
    def function(x: torch.Tensor, first: list[Any], second: dict[str, Any]) -> Any:
        y = ((x * 2 + 1) * 3 - 1).relu()
        known = [y, y + x, first, second, first[0], first[0][1], second["k"], *OUTSIDE, OUTSIDE[0][0], OUTSIDE[1]["t"]]
        for kind, one, other in steps:
            a, b = known[int(one * len(known))], known[int(other * len(known))]
            if kind == 0:
                known.append([a, b])
            elif kind == 1:
                known.append((a, b))
            elif kind == 2:
                known.append({"p": a})
            elif kind == 3:
                first[1] = a
            elif kind == 4:
                second["n"] = a
            else:
                known.append(known[-1])
        return tuple(known[-4:])

    return function


def arguments(number: int) -> tuple[torch.Tensor, list[Any], dict[str, Any]]:
    return torch.ones(2) * number, [("t", ["s"]), None], {"k": [0]}


def structure(result: object, given: tuple[Any, ...]) -> tuple[object, list[torch.Tensor], list[object]]:
    """The key, the tensors, and which containers are those that lie outside."""
    layout = flatten((result, given[1:], OUTSIDE), "result")
    outside = [*OUTSIDE, OUTSIDE[0][0], OUTSIDE[1]["t"]]
    return layout.key, layout.leaves, [next((o for o in outside if o is one), None) for one in layout.containers]


@settings(max_examples=15, derandomize=True, deadline=None)
@given(STEPS)
def test_a_replay_gives_what_a_call_gives(steps: list[tuple[int, float, float]]) -> None:
    function = program(steps)
    graphed = grape.graph(function, device="cpu")
    for number in range(16):
        given, plain = arguments(number), arguments(number)
        key, leaves, outside = structure(graphed(*given), given)
        expected = structure(function(*plain), plain)
        assert key == expected[0]
        assert all(map(torch.equal, leaves, expected[1]))
        assert outside == expected[2]
    evidence = graphed.evidence()
    assert evidence is not None and (evidence.replays or evidence.refused is not None)
    graphed.release()
