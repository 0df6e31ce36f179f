"""Operators that take functions: torch dispatches them in Python, also while a stream is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._ops
from torch import Tensor

from grape.streams import Settings, Stream, open_stream
from tests.property.stream_programs import device, needs_compiler  # noqa: F401

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]


def branches(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 3, lambda t: t.sin() + 1, lambda t: t.cos() * 2, (x,))


@pytest.fixture(scope="module", autouse=True)
def was_compiled_before() -> None:
    """The first call has torch._dynamo wrap functions of torch for good."""
    branches(torch.ones(4))


def loops(x: Tensor) -> Tensor:
    from torch._higher_order_ops.while_loop import while_loop

    start = (torch.tensor(0), x)
    return while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * 2), start)[1]


def attends(x: Tensor) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    query = x.repeat(16).view(1, 2, 8, 4)
    return flex_attention(query, query, query, score_mod=lambda score, *_: score + 0.5)


def multiplies(x: Tensor) -> Tensor:
    from torch._higher_order_ops.out_dtype import out_dtype

    square = x.view(2, 2).to(torch.int8)
    return out_dtype(torch.ops.aten.mm.default, torch.int32, square, square)


@pytest.mark.parametrize("operator", [branches, loops, attends, multiplies])
def test_they_give_what_they_give_without_a_stream(operator: Callable[[Tensor], Any], device: str) -> None:  # noqa: F811
    def steps() -> list[Tensor]:
        x, out = torch.ones(4), []
        for _ in range(6):
            out.append(operator(x))
            x = torch.tanh(x * 1.5) - 0.1
        return [*out, x]

    plain = steps()
    stream = open_stream(Settings(device=device, shortest=1, hot=2, settled=0, patience=0, price=0, doubt=0))
    assert isinstance(stream, Stream), stream
    with stream:
        served = steps()
    assert all(torch.equal(one, other) for one, other in zip(plain, served, strict=True))


def test_one_that_is_defined_meanwhile_passes_the_key_over_too() -> None:
    class Twice(torch._ops.HigherOrderOperator):
        def __call__(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
            return super().__call__(function, x)

    def eager(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return function(function(x))

    key = torch._C._parse_dispatch_key("Fake")
    stream = open_stream(Settings(device="cpu"))
    assert isinstance(stream, Stream), stream
    try:
        with stream:
            twice = Twice("grape_test_twice")
            twice.fallthrough(torch._C.DispatchKey.AutogradCPU)
            twice.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)(eager)
            assert twice(torch.sin, torch.ones(3)).tolist() == torch.ones(3).sin().sin().tolist()
        assert twice.non_fallthrough_keys.has(key), "the key is as it was"
        assert torch._ops._higher_order_ops["cond"].non_fallthrough_keys.has(key)
        assert key not in torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    finally:
        torch._ops._higher_order_ops.pop("grape_test_twice", None)
