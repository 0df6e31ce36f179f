"""`Predicate`: a block whose device writes happen only where a condition holds."""

from __future__ import annotations

from contextlib import ExitStack

import torch

from .lowering.flag import Flag, as_predicate
from .lowering.lowering import active_lowering
from .lowering.merge import merge_values, select_bits
from .lowering.truth import is_tensor_predicate
from .lowering.writes import WriteMode


class Predicate:
    """Context manager: device work inside takes effect only where `cond` is true.

    `cond` is a bool, or a tensor with one element; it is evaluated on entry, and on the device if it lives there,
    without waiting for it. The Python code of the block runs in any case. Writes in place and through `out=` to memory
    that existed before the block do not happen where `cond` is false: that memory keeps its bits. Tensors that are
    made in the block have undefined contents there; `select` brings one out. Gradients do not pass a write that may
    not happen: raises `UsageError` for one that autograd would record.

    The idea is Grape's predication context (Zheng et al., MICRO 2023).
    """

    def __init__(self, cond: bool | torch.Tensor | Flag) -> None:
        self._cond = cond
        self._stack = ExitStack()
        self._pred: torch.Tensor | None = None

    def __enter__(self) -> Predicate:
        cond = self._cond
        lowering = active_lowering()
        if lowering is not None and is_tensor_predicate(cond):
            self._pred = as_predicate(cond)
            self._stack.enter_context(lowering.predicated(self._pred))
        elif isinstance(cond, torch.Tensor) and cond.numel() == 1:
            self._pred = as_predicate(cond)
            self._nullify(self._pred)
        elif not cond:
            # Made on the device of the lowering: a capture refuses copies from pageable host memory.
            device = torch.device("cpu") if lowering is None else lowering.device
            self._pred = torch.zeros((), dtype=torch.bool, device=device)
            if lowering is not None:
                self._stack.enter_context(lowering.predicated(self._pred))
            else:
                self._nullify(self._pred)
        return self

    def _nullify(self, pred: torch.Tensor) -> None:
        mode = WriteMode(strict=False)
        self._stack.enter_context(mode)
        self._stack.enter_context(mode.block(pred))

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def select(self, inside: object, outside: object) -> object:
        """`inside` where the condition held, else `outside`: a tensor (or tuple of tensors) made by select.

        Both must agree in shape, dtype, strides and device. Call it inside the block or after it.
        """
        if self._pred is None:
            return inside
        pred = self._pred

        def select(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return select_bits(pred if pred.device == one.device else pred.to(one.device), one, other)

        return merge_values(pred, inside, outside, select)
