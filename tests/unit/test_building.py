"""Generated code that builds results (`runtime/replaying/building.py`)."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grape
from grape.model import Reason
from grape.runtime.guarding.structure import flatten
from grape.runtime.replaying.building import compile_build

Pair = namedtuple("Pair", "first second")


class Thing:
    """An object with attributes."""


class Named(dict[str, Any]):
    """A dict with attributes."""


def thing(items: list[Any]) -> Thing:
    made = Thing()
    made.__dict__.update({f"a{i}": item for i, item in enumerate(items)})
    return made


def named(items: list[Any]) -> Named:
    made = Named({f"k{i}": item for i, item in enumerate(items)})
    made.note = items[:1]  # type: ignore[attr-defined]
    return made


LEAVES = st.one_of(
    st.builds(lambda: torch.zeros(2)), st.sampled_from([None, 1, 1.0, -0.0, True, "x', ", float("inf"), (), []])
)
TREES = st.recursive(
    LEAVES,
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.tuples(children, children).map(lambda pair: Pair(*pair)),
        st.dictionaries(st.sampled_from(["a", "b, ", "'"]), children, max_size=3),
        st.dictionaries(st.sampled_from("ab"), children, max_size=2).map(OrderedDict),
        st.lists(children, max_size=3).map(thing),
        st.lists(children, max_size=2).map(named),
    ),
    max_leaves=12,
)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(TREES)
def test_what_is_built_is_what_was_taken_apart(tree: Any) -> None:
    layout = flatten((tree,), "args")
    build = compile_build(layout.root, [None] * len(layout.leaves), (), {}, {}, {})
    again = flatten(build((), (), layout.leaves), "args")
    assert again.key == layout.key
    assert all(a is b for a, b in zip(again.leaves, layout.leaves, strict=True))
    mutable = [(a, b) for a, b in zip(again.containers, layout.containers, strict=True) if not isinstance(a, tuple)]
    assert all(a is not b for a, b in mutable)


def test_a_container_that_refers_to_itself() -> None:
    loop: list[Any] = [torch.zeros(1)]
    loop += [loop, (loop,)]
    layout = flatten((loop,), "args")
    build = compile_build(layout.root, [None], (), {}, {}, {})
    (made,) = build((), (), layout.leaves)
    assert made is not loop and made[0] is loop[0] and made[1] is made and made[2][0] is made


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 1, "b": 2}, {"a": 3}),
        ({"a": 1}, {"b": 1, "a": 2}),
        ({}, {"a": 1}),
        ({"a": 1, "b": 2}, {}),
    ],
)
def test_an_object_is_left_with_exactly_these_attributes(before: dict[str, int], after: dict[str, int]) -> None:
    wanted = Thing()
    wanted.__dict__.update(after)
    layout = flatten((wanted,), "args")
    node = layout.root.children[0]
    target = Thing()
    target.__dict__.update(before)
    build = compile_build(node, [], [node], {node.number: 0}, {}, {})
    assert build((), [target], ()) is target
    assert vars(target) == after


def test_where_leaves_come_from() -> None:
    argument, output, elsewhere = torch.zeros(1), torch.ones(1), torch.full((1,), 2.0)
    layout = flatten(([argument, output, elsewhere, output],), "args")
    build = compile_build(layout.root, [0, None, lambda arguments: elsewhere], (), {}, {}, {})
    other = torch.zeros(1)
    ((first, second, third, fourth),) = build([other], (), [output])
    assert first is other and second is output and third is elsewhere and fourth is output


def test_a_builder_dies_with_its_last_reference() -> None:
    outside = Thing()
    layout = flatten((outside,), "args")
    node = layout.root.children[0]
    gc.disable()
    try:
        build = compile_build(node, [], (), {}, {node.number: outside}, {})
        assert build((), (), ()) is outside
        held = weakref.ref(outside)
        del outside, build, layout, node
        assert held() is None
    finally:
        gc.enable()


def _replayed(function: Any, calls: int = 60) -> list[Any]:
    """What calls give that replays serve, each with an argument list of its own."""
    graphed = grape.graph(function, device="cpu")
    found = []
    for number in range(calls):
        items: list[Any] = [0]
        before = (graphed.evidence() or NOTHING).replays
        result = graphed(torch.ones(2) * number, items)
        if graphed.evidence().replays > before:  # type: ignore[union-attr]
            found.append((result, items))
    assert found
    return found


NOTHING = SimpleNamespace(replays=0)
OUTSIDE = [(1, 2)]


def _work(x: torch.Tensor) -> torch.Tensor:
    return ((x * 2 + 1) * 3 - 1).relu()


def test_a_tuple_inside_a_list_from_outside_is_the_very_tuple() -> None:
    def function(x: torch.Tensor, items: list[Any]) -> Any:
        return _work(x), OUTSIDE, OUTSIDE[0]

    for (_, outside, inner), _ in _replayed(function):
        assert outside is OUTSIDE and inner is OUTSIDE[0]


def test_what_a_call_puts_into_an_argument_and_returns_is_one_object() -> None:
    def function(x: torch.Tensor, items: list[Any]) -> Any:
        y = _work(x)
        made = [y]
        items[0] = made
        return y, made

    for (y, made), items in _replayed(function):
        assert items[0] is made and made[0] is y


def test_a_tuple_that_holds_itself_is_refused() -> None:
    def function(x: torch.Tensor, items: list[Any]) -> Any:
        inner: list[Any] = []
        loop = (inner, _work(x))
        inner.append(loop)
        return loop

    graphed = grape.graph(function, device="cpu")
    for _ in range(20):
        (inner, _) = result = graphed(torch.ones(2), [])
        assert inner[0] is result
    assert graphed.evidence().refused.reason is Reason.ARGUMENTS  # type: ignore[union-attr]


def test_a_result_that_is_nested_too_deeply_is_refused() -> None:
    def function(x: torch.Tensor, items: list[Any]) -> Any:
        made = _work(x)
        for _ in range(2000):
            made = [made]  # type: ignore[assignment]
        return made

    graphed = grape.graph(function, device="cpu")
    for _ in range(20):
        assert isinstance(graphed(torch.ones(2), []), list)
    assert graphed.evidence().refused.reason is Reason.ARGUMENTS  # type: ignore[union-attr]
