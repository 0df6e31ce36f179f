"""Attention that asks whether two of its arguments are one tensor, and then computes another way, under a stream; what
of it is deferred on a GPU: `tests/gpu/test_stream_attention_gpu.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.property.stream_programs import device, needs_compiler  # noqa: F401
from tests.unit.test_streams_contract import agrees

pytestmark = needs_compiler

Given = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]

ONE: Given = lambda x: (x, x, x)  # noqa: E731
TWO: Given = lambda x: (x.view_as(x), x, x)  # noqa: E731
THREE: Given = lambda x: (x, x.view_as(x), x.view_as(x))  # noqa: E731


def attention(*given: Given, on: str = "cpu") -> Callable[[], Any]:
    """A loop over the operator that `MultiheadAttention` is in evaluation; it is given its query, key and value in turn
    as `given` tells.
    """
    torch.manual_seed(0)
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True).eval().to(on), torch.randn(2, 5, 8).to(on)
    attend = torch.ops.aten._native_multi_head_attention
    weights = [layer.in_proj_weight, layer.in_proj_bias, layer.out_proj.weight, layer.out_proj.bias]

    def loop() -> list[Tensor]:
        y, seen = x, []
        for i in range(40):
            attended, _ = attend(*given[i % len(given)](y), 8, 2, *weights, need_weights=False)
            y = torch.tanh(attended + x) * 1.5
            seen.append(y)
        return seen

    return torch.no_grad()(loop)


def test_attention_runs_as_written_on_the_cpu_and_the_rest_is_deferred() -> None:
    """Under autocast it casts within, of which autocast does not know."""
    evidence = agrees(attention(ONE))
    assert 0.6 * evidence.seen < evidence.matched <= 0.75 * evidence.seen


def test_a_transformer_in_evaluation() -> None:
    torch.manual_seed(0)
    model, x = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval(), torch.randn(2, 5, 8)
    agrees(torch.no_grad()(lambda: [model(x, x) for _ in range(12)]))
