"""What makes two traces equal: where attention leaves its seeds, and the sign of a zero."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from grape.runtime.capture.running.lockstep import Diverged
from grape.tracing import PositionFinder, Recorder, Tracer

META, CPU = torch.device("meta"), torch.device("cpu")
AT = (None, None)


@pytest.fixture
def operators() -> Iterator[Any]:
    """Shaped as PyTorch's attention without `dropout_p`; `where` stands for whether a stream captures."""
    library = torch.library.Library("aten", "FRAGMENT")
    library.define("grape_attend(Tensor query, Device where) -> (Tensor output, Tensor philox_seed, Tensor other)")
    library.define("grape_attend_backward(Tensor grad, Tensor philox_seed) -> Tensor")

    def attend(query: torch.Tensor, where: torch.device) -> tuple[torch.Tensor, ...]:
        return query.clone(), torch.empty((), device=where), torch.empty((), device="meta")

    library.impl("grape_attend", attend, "Meta")
    yield torch.ops.aten
    library._destroy()


def recorded(operators: Any, where: torch.device, elsewhere: bool = False, apart: bool = False) -> tuple[Any, ...]:
    recorder = Recorder(META)
    x = torch.empty(4, device="meta")
    function = operators.grape_attend.default
    result = function(x, where)
    if elsewhere:
        result = (result[0], result[1], result[2].new_empty((), device="cpu"))
    # where the operator is told to run is no argument of the real one
    forward = recorder.after(recorder.before(function, (x,), {}), function, (x,), {}, result, AT, 0)
    given = (result[0], result[1])
    function = operators.grape_attend_backward.default
    if apart:  # a backward that is traced by itself
        recorder = Recorder(META)
    backward = recorder.after(recorder.before(function, given, {}), function, given, {}, x.clone(), AT, 0)
    return forward, backward


@pytest.mark.parametrize("apart", [False, True])
def test_seeds_have_the_device_of_the_first_tensor(operators: Any, apart: bool) -> None:
    eager, captured = recorded(operators, CPU, apart=apart), recorded(operators, META, apart=apart)
    assert [one.signature() for one in eager] == [one.signature() for one in captured]
    assert [view.device for view in eager[0].outputs] == ["meta"] * 3
    assert [one.kind for one in eager] == [one.kind for one in captured] == ["compute", "compute"]


def test_other_results_keep_theirs_and_the_difference_is_told(operators: Any) -> None:
    eager, captured = recorded(operators, CPU, elsewhere=True), recorded(operators, META)
    assert eager[0].signature() != captured[0].signature()
    assert str(Diverged(eager[0], captured[0])) == ("aten.grape_attend.default, result 2 device cpu and then meta")


def test_the_same_tensors_in_other_places_are_other_arguments() -> None:
    x, y, clamp = torch.empty(3), torch.empty(3), torch.ops.aten.clamp.Tensor
    ops = []
    for bounds in ((None, y), (y, None), (None, y)):
        recorder = Recorder(CPU)
        given = (x, *bounds)
        ops.append(recorder.after(recorder.before(clamp, given, {}), clamp, given, {}, torch.empty(3), AT, 0))
    assert ops[0].difference(ops[1]) == "other arguments"
    assert ops[0].difference(ops[2]) == ""


def test_operators_of_others_may_have_seeds_of_that_name() -> None:
    """Any result or argument may be called so; nothing is known of where it lies, but where it lies."""
    library = torch.library.Library("grape_seeds", "DEF")
    library.define("draw(int size, Tensor philox_seed) -> Tensor")
    library.define("seed(Tensor query) -> Tensor philox_seed")
    draw, seed = torch.ops.grape_seeds.draw.default, torch.ops.grape_seeds.seed.default
    try:
        recorder = Recorder(META)
        given, drawn = torch.empty(2), torch.empty(3, device="meta")
        first = recorder.after(recorder.before(draw, (3, given), {}), draw, (3, given), {}, drawn, AT, 0)
        second = recorder.after(recorder.before(seed, (drawn,), {}), seed, (drawn,), {}, torch.empty(()), AT, 0)
    finally:
        library._destroy()
    assert [view.device for one in (first, second) for view in (*one.tensors(), *one.outputs)] == [
        "cpu",
        "meta",
        "meta",
        "cpu",
    ]
    assert (first.kind, second.kind) == ("transfer-in", "transfer-out")


def test_shapes_without_data_are_not_copied() -> None:
    """Forward derivatives are inferred with them, on a GPU too: nobody waits for that."""
    infer, make = torch.ops.aten.to.device, torch.ops.aten.empty_like.default
    recorder, x = Recorder(CPU), torch.ones(2)
    away = (x, META, x.dtype)
    shape = infer(*away)
    first = recorder.after(recorder.before(infer, away, {}), infer, away, {}, shape, AT, 0)
    back = {"device": CPU}
    second = recorder.after(recorder.before(make, (shape,), back), make, (shape,), back, make(shape, **back), AT, 0)
    assert (first.kind, second.kind) == ("host", "compute")


def test_a_negative_zero_is_another_value() -> None:
    """A product with it has other bits."""
    multiply = torch.ops.aten.mul.Scalar
    traced = []
    for factor in (0.0, -0.0, -0.0):
        recorder, x = Recorder(CPU), torch.ones(2)
        traced.append(
            recorder.after(recorder.before(multiply, (x, factor), {}), multiply, (x, factor), {}, x * factor, AT, 0)
        )
    assert traced[0].signature() != traced[1].signature() == traced[2].signature()
    assert traced[0].scalars() == ("float", 0.0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_cannot_be_named_runs_as_written(without_gradients: None) -> None:
    ragged = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)])
    tracer, recorder = Tracer(PositionFinder()), Recorder(CPU)
    tracer.enter()
    try:
        tracer.listen(recorder)
        padded = ragged.to_padded_tensor(0.0)
    finally:
        tracer.mute()
        tracer.leave()
    assert padded.shape == (2, 3, 8)
    assert [name for name, _ in recorder.escapes] == ["a tensor without a storage"]


class Odd:
    """Compares as scripted objects do that have no `__eq__` of their own."""

    def __eq__(self, other: object) -> bool:
        raise NotImplementedError("'__eq__' is not implemented")

    __hash__ = None  # type: ignore[assignment]


def test_an_argument_that_cannot_be_compared_is_itself_only() -> None:
    one, other = Odd(), Odd()
    frozen = [Recorder(META)._freeze([value], []) for value in (one, one, other)]
    assert frozen[0] == frozen[1] and frozen[0] != frozen[2]
    several = torch.arange(3).numpy()  # gives no bool
    assert Recorder(META)._freeze(several, []) == Recorder(META)._freeze(several, [])
    for value in (None, "mean", torch.float16, CPU, torch.strided, torch.preserve_format, 1j):
        assert Recorder(META)._freeze(value, []) == value
