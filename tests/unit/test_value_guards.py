"""Values that the host reads: computed again before each replay where that is certain, else refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good

from tests.property.programs import Twins, World

pytestmark = pytest.mark.usefixtures("without_eager_calls_in_between")


def work(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * 0.5) + x.sum()


def _rows_of_one(world: World) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Three rows somewhere in a larger tensor."""
    first = int(torch.randint(0, 4, ()))
    return (torch.randn(6, 4)[first : first + 3],), {}


def _rows_of_two(world: World) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Two arguments in one memory, of which the second lies first."""
    whole = torch.randn(6, 4)
    return (whole[4:], whole[1:3]), {}


VIEWS: dict[str, tuple[Callable[..., Any], Callable[[World], Any]]] = {
    "one argument": (lambda x: work(x) if bool(x[0, 0] > 0) else work(x) * 2, _rows_of_one),
    "a row of one": (lambda x: work(x) if bool(x[1].sum() > 0) else work(x) * 2, _rows_of_one),
    "the later of two": (lambda x, y: work(x) + y if bool(x[0, 0] > 0) else work(x) - y, _rows_of_two),
    "the earlier of two": (lambda x, y: work(x) + y if bool(y[0, 1] > 0) else work(x) - y, _rows_of_two),
}


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_read_of_an_argument_is_found_wherever_it_lies(name: str) -> None:
    function, call = VIEWS[name]
    twins = Twins(lambda: World(function=function))
    twins.calls_of(call, 40)
    assert twins.replays > 5
    twins.close()


def _constant_that_is_written(x: torch.Tensor) -> torch.Tensor:
    sign = torch.tensor([1.0])
    sign.mul_(x[0, 0])
    return work(x) if bool(sign > 0) else work(x) * 2


def _many_operators(x: torch.Tensor) -> torch.Tensor:
    y = x
    for _ in range(16):
        y = y * 1.5
    return work(x) if bool(y[0, 0] > 0) else work(x) * 2


def _another_dtype(x: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.view(3, 2, 2))
    return work(x) if bool(pairs.abs()[0, 0] > 1) else work(x) * 2


def _random_numbers(x: torch.Tensor) -> torch.Tensor:
    return work(x) if bool(torch.rand(()) > 2) else work(x) * 2


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "a constant that the code writes": (_constant_that_is_written, "GR102"),
    "a value that takes many operators": (_many_operators, "GR102"),
    "a view that has another dtype": (_another_dtype, "GR102"),
    "random numbers": (_random_numbers, "GR102"),
    "rows that data selects": (lambda x: work(x)[x[:, 0] > 0], "GR103"),
    "positions that data has": (lambda x: work(x[:, 0].nonzero().float()), "GR103"),
}


@pytest.mark.parametrize("read", ["numbers", "pairs"])
def test_a_tensor_from_outside_is_read_in_its_own_dtype(read: str) -> None:
    """Its memory is reached through two tensors of different dtypes."""

    def build() -> World:
        pairs = torch.randn(3, 2, dtype=torch.complex64)
        numbers = torch.view_as_real(pairs)

        def function(x: torch.Tensor) -> torch.Tensor:
            first = (numbers if read == "numbers" else pairs).flatten()[0].abs()
            return work(x) if bool(first > 1) else work(x) * (2 + numbers.dim() - pairs.dim())

        return World(pairs=pairs, function=function)

    def change(world: World) -> None:
        world.pairs.copy_(torch.randn(3, 2, dtype=torch.complex64))

    twins = Twins(build)
    for _ in range(24):
        twins.both(change)
        twins.call(lambda world: ((torch.randn(3, 4),), {}))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_computed_before_a_replay_is_refused(name: str) -> None:
    function, code = REFUSED[name]
    twins = Twins(lambda: World(function=function))
    twins.calls_of(lambda world: ((torch.randn(3, 4),), {}), 24)
    assert twins.replays == 0 and twins.refused is not None and twins.refused.code == code, twins.refused
    region = twins.graphed._region
    assert region is not None and not region.captures.costs.durations_ms, "it was captured, and never replayed"


NEGATIVE_ZEROS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a factor": lambda x: work(x) * torch.mul(x.sum(), -0.0).item(),
    "a bound": lambda x: work(x) * torch.clamp(x.sum(), -0.0, 5.0).item(),
    "a bound of what is drawn": lambda x: work(x) * torch.full((2,), -0.0).uniform_(-0.0, 1.0)[0],
}


@pytest.mark.parametrize("name", NEGATIVE_ZEROS)
def test_a_negative_zero_is_the_one_that_was_written(name: str) -> None:
    twins = Twins(lambda: World(function=NEGATIVE_ZEROS[name]))
    twins.calls_of(lambda world: ((torch.full((4,), 1.0),), {}), 20)
    assert twins.replays > 5
    twins.close()
