"""How long results live, as `Lifetimes` sees it: only what nobody keeps may be handed out in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from grape.runtime.buffers.lifetimes import ENOUGH, Lifetimes
from grape.runtime.guarding.structure import flatten

Loop = Callable[[list[Any], "Tensor | None", Tensor, int], "Tensor | None"]


def watch(loop: Loop, calls: int = 6, step: int = 1) -> tuple[frozenset[str], str]:
    """A region that returns one tensor, and a loop that keeps some and returns the next call's argument."""
    lifetimes, kept = Lifetimes(), list[Any]()
    argument: Tensor | None = None
    path = ""
    for call in range(1, calls * step + 1, step):
        leaves = [] if argument is None else [argument]
        lifetimes.arrive(call, flatten((tuple(leaves), {}), "args"), {})
        result = torch.full((4,), float(call))
        layout = flatten((result, tuple(leaves), {}), "result")
        path = layout.paths[0]
        lifetimes.leave(call, layout)
        del layout, leaves
        argument = loop(kept, argument, result, call)
        del result
    return lifetimes.passing(), path


def _keep(kept: list[Any], value: Any) -> None:
    kept.append(value)


def _last(kept: list[Any], value: Any) -> None:
    kept[:] = [value]


LOOPS: dict[str, tuple[bool, Loop]] = {
    "dead at once": (True, lambda kept, before, result, call: None),
    "fed back": (True, lambda kept, before, result, call: result),
    "fed back as a view": (True, lambda kept, before, result, call: result[1:]),
    "copied, then fed back": (True, lambda kept, before, result, call: result.clone()),
    "a value read": (True, lambda kept, before, result, call: _keep(kept, result.sum().item())),
    "copies kept": (True, lambda kept, before, result, call: _keep(kept, result.clone())),
    "all kept": (False, lambda kept, before, result, call: _keep(kept, result)),
    "views kept": (False, lambda kept, before, result, call: _keep(kept, result[:1])),
    "kept once": (False, lambda kept, before, result, call: _keep(kept, result) if call == 3 else None),
    "kept for one call": (False, lambda kept, before, result, call: _last(kept, result)),
    "fed back and kept": (False, lambda kept, before, result, call: (_keep(kept, result), result)[1]),
    "fed back and kept one call longer": (False, lambda kept, before, result, call: (_last(kept, before), result)[1]),
    "saved by autograd": (
        False,
        lambda kept, before, result, call: _keep(kept, result * torch.ones(4, requires_grad=True)),
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_results_that_pass(name: str) -> None:
    passes, loop = LOOPS[name]
    found, path = watch(loop)
    assert (path in found) is passes


def test_each_result_is_judged_for_itself() -> None:
    lifetimes, kept = Lifetimes(), []
    for call in range(1, 5):
        lifetimes.arrive(call, flatten(((), {}), "args"), {})
        result = {"kept": torch.ones(2), "dead": torch.zeros(2)}
        layout = flatten((result, (), {}), "result")
        dead = next(path for path in layout.paths if "dead" in path)
        lifetimes.leave(call, layout)
        kept.append(result["kept"])
        del layout, result
    assert lifetimes.passing() == {dead}


def test_nothing_passes_before_it_was_judged() -> None:
    assert watch(LOOPS["dead at once"][1], calls=1)[0] == set()
    assert watch(LOOPS["dead at once"][1], calls=2)[0] != set()


def test_calls_that_were_not_watched_tell_nothing() -> None:
    """Between two eager calls others were replayed: what lives two calls later was never in question."""
    assert watch(LOOPS["dead at once"][1], step=3)[0] == set()


def test_enough_is_enough() -> None:
    lifetimes = Lifetimes()
    for call in range(ENOUGH):
        assert not lifetimes.enough
        lifetimes.leave(call, flatten((torch.ones(1), (), {}), "result"))
    assert lifetimes.enough
