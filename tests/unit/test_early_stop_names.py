"""Iterations whose names are bound again in branches: a copy goes on only where nobody could tell it from the original.

Each program runs over loops that end early, late and not at all, and over every way through its branches.
"""

from __future__ import annotations

from pathlib import Path
from sys import getrefcount
from typing import Any
from weakref import ref

import pytest
import torch

from grape.rewrite.control_flow import RewrittenFlow, rewrite_control_flow
from grape.runtime.predication.holders import Holders
from tests.property.loop_names import under_grape

pytestmark = pytest.mark.usefixtures("closed_engine")

_PROGRAM = """
import torch
table = torch.arange(4.0)
kept = []

def decode(x, y, limit):
    a, b, c = x * 1, y * 2, x + y
    n = torch.zeros(())
    first = None
{before}
    for _ in range(24):
        n = n + 1
{body}
        if n > limit:
            break
    for value in (a, b, c):
        value.mul_(2).add_(1)
    names = (a, b, c, x, y, first, table)
    same = [one is other for one in names for other in names]
    return n.item(), [value.tolist() for value in names if isinstance(value, torch.Tensor)], same
"""
_BEST = ("if a.sum() > b.sum():", "    a = a * 0.5 - n", "b = torch.tanh(b) + 0.1")
# Each way was taken, and compared, before both are taken in one iteration: in the 21st, and in the 22nd.
_TWO_OF_ONE = (
    *("d = torch.tanh(b) + n", "if (n % 2 > 0) & (n < 22):", "    a = d"),
    *("if (n % 4 == 2) | (n == 21):", "    c = d"),
)
_ONE_OF_ANOTHER = (
    *("b.mul_(0.9)", "t = c * 1", "if (n % 4 == 1) | (n == 22):", "    t = b"),
    *("if n % 4 == 2:", "    a = t"),
)


def _program(before: str, body: tuple[str, ...]) -> str:
    return _PROGRAM.format(before=f"    {before}", body="\n".join(f"        {line}" for line in body))


@pytest.mark.parametrize(
    ("before", "body"),
    [
        ("pass", _BEST),
        ("pass", ("if n > 5:", "    a = b + 1", "elif n > 2:", "    a = a * 2", "b = b * 0.5")),
        ("pass", ("a = b", "b = torch.tanh(b) + 1")),
        ("pass", ("if n % 2 > 0:", "    a = c", "c = c * 0.5 + n")),
        ("pass", ("a, b = b, a + b * 0.1",)),
        ("first = x", _BEST),
        ("first = c", (*_BEST, "c += 0.5")),
    ],
    ids=["best so far", "three ways", "last", "sometimes last", "fibonacci", "other", "in place beside"],
)
def test_a_name_that_a_branch_binds_replays(before: str, body: tuple[str, ...], tmp_path: Path) -> None:
    expected, found, region = under_grape(_program(before, body), tmp_path)
    assert found == expected
    assert region["outcome"] == "replayed" and region["verified"] == "identical" and region["replays"] > 40


@pytest.mark.parametrize(
    ("before", "body"),
    [
        ("first = a", _BEST),
        ("first = a.view(-1)", _BEST),
        ("first = a[:2]", _BEST),
        ("first = a.detach()", _BEST),
        ("held = a.untyped_storage()", _BEST),
        ("held = a.numpy()", _BEST),
        ("kept[:] = [a]; first = kept[0]", _BEST),
        ("a = x", _BEST),
        ("pass", ("b.add_(1)", "if b.sum() % 3 < 1:", "    a = b")),
        ("pass", ("b = b + 1", "if b.sum() % 3 < 1:", "    a = b")),
        ("pass", ("if n % 3 < 1:", "    a, b = b, a")),
        ("pass", ("b.mul_(0.5)", "if n > 14:", "    a = b")),
        ("pass", ("b = b * 0.5", "if n > 14:", "    a = b")),
        ("pass", _TWO_OF_ONE),
        ("pass", _ONE_OF_ANOTHER),
        ("pass", ("if n > 5:", "    a = table", "else:", "    a = a + 1")),
        ("pass", ("c = b[:]", "b.add_(1)", "a = a + c")),
        ("pass", ("if n > 5:", "    a = a.view(-1)", "else:", "    c = a")),
    ],
    ids=[
        *("another name", "a view", "a part", "detached", "its storage", "NumPy", "a list", "an argument"),
        *("written in place", "two names of one", "swapped sometimes", "written later", "one late"),
        *("two ways that meet", "two ways to another"),
        *("from outside", "a view goes on", "of one"),
    ],
)
def test_a_tensor_that_somebody_else_holds_stays_the_one_that_it_is(
    before: str, body: tuple[str, ...], tmp_path: Path
) -> None:
    expected, found, _ = under_grape(_program(before, body), tmp_path)
    assert found == expected


def test_who_holds_a_tensor() -> None:
    assert Holders((), ()).alone((torch.zeros(3),), 0)
    kept = torch.zeros(3)
    assert not Holders((), ()).alone((kept,), 0)
    state = (kept,)
    assert Holders(state, ()).alone(state, 0)  # the name's own
    twice = kept
    assert not Holders(state, ()).alone(state, 0)
    del twice
    again = (state[0],)
    assert not Holders(state, ()).alone(state, 0)
    assert Holders(state, (again,)).alone(state, 0)
    assert Holders(state, ()).alone((1, state[0]), 1) is False  # `again` holds it too
    del again
    assert Holders(state, ()).alone((1, state[0]), 1)  # by another of the loop's names
    weak = ref(kept)
    assert not Holders(state, ()).alone(state, 0) and weak() is not None
    del weak
    assert Holders(state, ()).alone(state, 0)
    view = kept[:1]
    assert not Holders(state, ()).alone(state, 0)
    del view
    storage = kept.untyped_storage()
    assert not Holders(state, ()).alone(state, 0) and getrefcount(storage) > 1


def test_what_a_replay_made_is_the_loops_until_it_is_bound_again() -> None:
    holders = Holders((), ())
    given, made = (torch.zeros(3), torch.zeros(3)), torch.ones(3)
    other = given[1]
    after = (made, given[1])
    holders.replayed(given, after)
    assert holders.alone(after, 0) and not holders.alone(after, 1) and other is after[1]
    fresh = torch.ones(3)
    holders.ran((fresh, after[1]))
    assert not holders.alone((fresh, after[1]), 0) and not holders.alone(after, 0)


def test_the_names_of_a_loop_hold_its_first_state() -> None:
    """What `Holders` counts on: the rewritten code passes the tensors by the names that the loop binds."""
    made = rewrite_control_flow(_program("pass", _BEST), filename="plain.py")
    assert isinstance(made, RewrittenFlow)
    call = next(line for line in made.source.splitlines() if "_flow.repeat(" in line)
    names: Any = call.split(" = ")[0].strip()
    assert f"({names})" in call
