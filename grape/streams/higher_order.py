"""Operators that take functions, as `torch.cond` and `flex_attention` do, are dispatched in Python, where the key of
streams has no kernel for them. They pass it over; the operators that their functions call arrive one by one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch._ops

_KEY = "Fake"  # `KEY` of native/src/operators/values.h


def watch() -> Callable[[], None]:
    """Have all of them pass the key over, those that are defined later as well; the result undoes it."""
    key = torch._C._parse_dispatch_key(_KEY)
    assert key is not None
    by_default = torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    by_default.append(key)
    for operator in torch._ops._higher_order_ops.values():
        operator.fallthrough(key)

    def undo() -> None:
        by_default.remove(key)
        for operator in torch._ops._higher_order_ops.values():
            operator.non_fallthrough_keys = operator.non_fallthrough_keys.add(key)

    return undo
