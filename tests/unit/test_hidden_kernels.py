"""Operators that run the person's Python: what torch tells of it is guarded, what it does not tell is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch import Tensor

from grape.runtime import GraphedFunction
from grape.runtime.backends.reference.backend import ReferenceBackend
from tests.property.programs import eager_to_graph

LIBRARY = torch.library.Library("grape_hidden", "FRAGMENT")
SEEN: list[int] = []


def doubled(x: Tensor) -> Tensor:
    SEEN.append(len(x))
    return x * 2


for name in ("plain", "plain.over", "everywhere"):
    LIBRARY.define(f"{name}(Tensor x) -> Tensor")
LIBRARY.impl("plain", doubled, "CPU")
LIBRARY.impl("plain.over", doubled, "CPU")
LIBRARY.impl("everywhere", doubled, "CompositeExplicitAutograd")
torch.library.define("grape_hidden::named", "(Tensor x) -> Tensor")


@torch.library.impl("grape_hidden::named", "cpu")
def named(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("grape_hidden::custom", mutates_args=())
def custom(x: Tensor) -> Tensor:
    return x * 2


@custom.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def outcome(double: Callable[[Tensor], Tensor]) -> str | None:
    def further(x: Tensor) -> Tensor:
        for _ in range(6):
            x = torch.tanh(x) + 1
        return x

    def step(x: Tensor) -> Tensor:
        return further(double(x))

    graphed = GraphedFunction(step, backend=ReferenceBackend(poison=True), tolerance=0.0)
    with torch.no_grad(), eager_to_graph():
        for number in range(8):
            x = torch.full((3,), float(number))
            assert torch.equal(graphed(x), further(x * 2))
    region = graphed._region
    assert region is not None and bool(region.replays) is (region.refused is None)
    graphed.release()
    return None if region.refused is None else f"{region.refused.code} {region.refused.why}"


@pytest.mark.parametrize(
    ("operator", "told"),
    [
        (torch.ops.grape_hidden.plain, "grape_hidden.plain.default"),
        (torch.ops.grape_hidden.plain.over, "grape_hidden.plain.over"),
        (torch.ops.grape_hidden.everywhere.default, "grape_hidden.everywhere.default"),
        (torch.ops.grape_hidden.named, "grape_hidden.named.default"),
    ],
    ids=["a packet", "an overload", "for every device", "by its name"],
)
def test_a_kernel_in_python_that_nobody_can_look_into_is_refused(operator: Callable[..., Tensor], told: str) -> None:
    why = outcome(operator)
    assert why == (
        f"GR405 torch does not show the Python code of {told}; register it with `torch.library.custom_op`, which does"
    )


@pytest.mark.parametrize("operator", [custom, torch.ops.grape_hidden.custom, torch.ops.aten.mul])
def test_others_are_captured(operator: Callable[..., Tensor]) -> None:
    arguments = (2,) if operator is torch.ops.aten.mul else ()
    assert outcome(lambda x: operator(x, *arguments)) is None
