"""Generated code that builds results (`runtime/replaying/building.py`)."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
