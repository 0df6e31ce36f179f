"""What the shapes of a region have in common is kept once, and what they have not stays apart."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from grape.runtime import GraphedFunction, Region
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.guarding.rebuilding import same_structure
from grape.runtime.guarding.sharing import shared, shared_key, shared_objects, shared_tensors
from grape.runtime.guarding.structure import flatten
from grape.runtime.replaying.output_spec import OutputSpec
from tests.property.programs import eager_to_graph

LENGTHS = (3, 5, 8, 9, 12)


class Cache:
    """Grows with each call, as a decoder's does."""

    def __init__(self, rows: list[Tensor]) -> None:
        self.rows = rows
        self.name = "cache"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, cache: Cache) -> dict[str, Any]:
        for layer, (index, row) in zip((self.first, self.second), enumerate(cache.rows), strict=True):
            x = layer(x).tanh()
            cache.rows[index] = torch.cat([row, x])
        return {"out": x + sum(row.sum() for row in cache.rows), "cache": cache}


def served(region_of: Callable[..., GraphedFunction]) -> tuple[Model, Region]:
    """A region that was called, twice and right each time, at all lengths."""
    torch.manual_seed(0)
    model = Model().eval()
    graphed = region_of(model.forward)
    with torch.no_grad(), eager_to_graph(in_place=True):
        for turn in range(6):
            for length in LENGTHS:
                x = torch.randn(1, 4)
                rows = [torch.randn(length, 4) for _ in range(2)]
                mine, eager = Cache([row.clone() for row in rows]), Cache(rows)
                result, expected = graphed(x, mine), model(x, eager)
                assert result["cache"] is mine and torch.equal(result["out"], expected["out"]), (turn, length)
                assert all(map(torch.equal, mine.rows, eager.rows)), (turn, length)
                assert mine.name == "cache"
    assert graphed._region is not None
    return model, graphed._region


def test_graphs_of_one_region_have_one_recipe_and_one_list_of_what_they_read() -> None:
    _, region = served(lambda function: GraphedFunction(function, backend=ReferenceBackend(), tolerance=0.0))
    captured = [shape for shape in region.shapes.values() if shape.entries]
    assert len(captured) == len(LENGTHS) and region.replays
    newest = [shape.entries[-1] for shape in captured]
    for what in ("output_spec", "externals", "held", "gradients", "paths", "reached"):
        assert len({id(getattr(entry, what)) for entry in newest}) == 1, what
    assert len({id(shape.paths) for shape in region.shapes.values()}) == 1
    assert len({id(shape.modes) for shape in region.shapes.values()}) == 1
    for entry in newest:
        assert not entry.placeholders.tensors
        layouts = [how for group in entry.outputs.groups for _, _, how in group.parts]
        assert len({id(how) for how in layouts}) < len(layouts)
    parts = [{id(part) for part in key if isinstance(part, tuple)} for key, _ in region.shapes]
    assert all(len(one & parts[0]) > len(one) // 2 for one in parts)
    region.release()


def test_a_key_of_shared_parts_equals_the_key_that_it_was() -> None:
    class Pair:
        def __init__(self, one: Any, two: Any) -> None:
            self.one, self.two = one, two

    trees: list[Any] = [
        [torch.zeros(2, 3), torch.zeros(2, 3), 1],
        [torch.zeros(2, 3), torch.zeros(2, 3), True],
        [torch.zeros(2, 3), torch.zeros(3, 2), 1.0],
        [torch.zeros(2, 3), (torch.zeros(2, 3), "a"), None],
        {"a": torch.zeros(1), True: 3},
        {"a": torch.zeros(1), 1: 3},
        Pair(torch.zeros(4), Pair(1, 1.0)),
        Pair(torch.zeros(4), Pair(True, 0.0)),
        Pair(torch.zeros(4), Pair(1, -0.0)),
        [],
    ]
    keys = [flatten(tree).key for tree in trees]
    for key in keys:
        for other in keys:
            found = shared_key(key, other)
            assert found == key and hash(found) == hash(key)
            assert [type(one) for one in found] == [type(one) for one in key]
            assert (found == other) is (key == other)
    assert len(set(keys)) == len(keys)


def test_results_are_known_wherever_tensors_are_made_by_default() -> None:
    """Who imports Grape under another default device gets nothing there."""
    spec = importlib.util.find_spec("grape.runtime.replaying.outputs")
    assert spec is not None and spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    with torch.device("meta"):
        spec.loader.exec_module(again)
    assert again._NOWHERE.device.type == "cpu"


SAME = torch.zeros(2)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([1, "a"], [1, "a"], True),
        ([1], [True], False),
        ([1.0], [1], False),
        ([0.0], [-0.0], False),
        ([float("nan")], [float("nan")], False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"b": 1}, False),
        ({1: "a"}, {True: "a"}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        ([[]], [()], False),
        ([SAME, SAME], [SAME, torch.zeros(2)], False),
        ([slice(1, 2)], [slice(1, 2)], False),
        ([nn.Linear(1, 1)], [nn.Linear(1, 1)], False),
    ],
)
def test_structures_that_are_the_same(one: Any, other: Any, same: bool) -> None:
    """Where they may differ they do not count as the same."""
    assert same_structure(flatten(one).root, flatten(other).root) is same


def output_spec(root: Any, **fields: Any) -> OutputSpec:
    layout = flatten(root)
    origin = fields.pop("origin", tuple(None for _ in layout.leaves))
    return OutputSpec(root=layout.root, origin=origin, changes=(), existing={}, **fields)


def test_recipes_that_do_the_same() -> None:
    made = [torch.zeros(2), torch.zeros(2)]
    assert output_spec(made).does_as(output_spec(made))
    assert not output_spec(made).does_as(output_spec(tuple(made)))
    assert not output_spec(made).does_as(output_spec(made, origin=(0, None)))
    assert not output_spec(made).does_as(output_spec(made, consumed={0: "MulBackward0"}))
    assert not output_spec(made).does_as(output_spec(made, inference={0: True}))
    held: list[int] = []
    assert not output_spec(made, outside={7: held}).does_as(output_spec(made, outside={7: held}))


def test_what_equals_gives_way_to_what_was_there() -> None:
    one, equal = (1000, 2000), (1000, 2000 + 0)
    assert shared(equal, [(1,), one]) is one and shared(equal, []) is equal
    tensors, others = [torch.zeros(1), torch.ones(1)], [torch.zeros(1), torch.ones(1)]
    assert shared_objects([*tensors], [others, tensors]) is tensors
    alone = [*tensors]
    assert shared_objects(alone, [others, tensors[:1]]) is alone
    mapping = dict(enumerate(tensors))
    assert shared_tensors({**mapping}, [mapping]) is mapping
    for different in (dict(enumerate(others)), {5: tensors[0], 1: tensors[1]}, {0: tensors[0]}):
        assert shared_tensors(different, [mapping]) is different
