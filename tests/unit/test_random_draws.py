"""Which calls of operators move a generator: an executable of a graph that draws serves no other graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo  # a dispatch mode imports it, and it wraps functions of torch for good

from grape.runtime.backends.operators import draws

aten = torch.ops.aten
X = torch.ones(2, 2)


@pytest.mark.parametrize(
    ("operator", "args", "kwargs", "drew"),
    [
        (aten.add.Tensor, (X, X), {}, False),
        (aten.bernoulli_.float, (X, 0.0), {}, True),
        (aten.native_dropout.default, (X, 0.1, None), {}, True),
        (aten.native_dropout.default, (X, 0.1, False), {}, False),
        (aten.dropout.default, (X, 0.1, True), {}, True),
        (aten.dropout.default, (X, 0.1, False), {}, False),
        (aten.rrelu.default, (X,), {}, False),
        (aten.rrelu.default, (X,), {"training": True}, True),
        (aten.lstm.input, (X, [], [], True, 1, 0.0, True, False, False), {}, False),
        (aten.lstm.input, (X, [], [], True, 1, 0.1, True, False, False), {}, True),
        (aten.lstm.input, (X, [], [], True, 1, 0.1, False, False, False), {}, False),
        (aten._scaled_dot_product_flash_attention.default, (X, X, X), {}, False),
        (aten._scaled_dot_product_flash_attention.default, (X, X, X, 0.5), {}, True),
        (aten.scaled_dot_product_attention.default, (X, X, X), {"dropout_p": 0.5}, True),
    ],
)
def test_what_draws(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], drew: bool) -> None:
    assert draws(operator, args, kwargs) is drew


def test_dropout_in_evaluation_is_seen_whole_in_inference_mode() -> None:
    """There an operator that is made of others reaches a dispatch mode as it is; decoders call this in every layer."""
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append((func, draws(func, args, kwargs or {})))
            return func(*args, **(kwargs or {}))

    with torch.inference_mode(), Watch():
        torch.nn.functional.dropout(X, 0.1, training=False)
    assert (aten.dropout.default, False) in seen
