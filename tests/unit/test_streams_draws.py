"""Operators that draw random numbers, deferred on the CPU: the generator is where eager code has it, at every place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch.nn import functional as F

from tests.property.stream_programs import device, needs_compiler  # noqa: F401
from tests.unit.test_streams_contract import agrees

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda t: t,
    "gaps": lambda t: t[:, ::2],
    "columns": lambda t: t[:, :5],
    "transposed": lambda t: t.t(),
    "rows": lambda t: t[2:5],
    "overlapping": lambda t: t.as_strided((6, 8), (4, 1)),
    "small": lambda t: t[:2, :3],
    "empty": lambda t: t[:0],
}
DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal_": lambda t: t.normal_(),
    "uniform_": lambda t: t.uniform_(),
    "bernoulli_": lambda t: t.bernoulli_(0.3),
    "exponential_": lambda t: t.exponential_(),
    "log_normal_": lambda t: t.log_normal_(),
    "cauchy_": lambda t: t.cauchy_(),
    "geometric_": lambda t: t.geometric_(0.4),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "bernoulli": lambda t: torch.bernoulli(t, 0.4),
    "dropout": lambda t: F.dropout(t, 0.4),
    "alpha_dropout": lambda t: F.alpha_dropout(t, 0.3),
    "rrelu": lambda t: F.rrelu(t.tanh(), training=True),
}


@pytest.mark.parametrize("name", DRAWS)
def test_what_is_drawn_into_memory_of_any_layout(name: str) -> None:
    draw = DRAWS[name]

    def loop() -> list[Any]:
        out = []
        for view in VIEWS.values():
            whole = torch.ones(6, 8)
            for _ in range(10):
                with suppress(RuntimeError):  # not into memory that overlaps
                    out.append(torch.sin(draw(view(whole))))
                out += [torch.get_rng_state(), whole.clone()]
        return out

    agrees(loop)
