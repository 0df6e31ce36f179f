"""Function modes of Grape's that code cannot tell from none.

Some code of torch asks whether a call would be overridden, and takes a slower way then, with other bits
(`nn.MultiheadAttention`, `nn.TransformerEncoderLayer`). A mode that only watches must not change the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import overrides

__all__ = ["UnseenMode"]

_real = overrides.has_torch_function
_DISABLED = torch._C._disabled_torch_function_impl


class UnseenMode(overrides.TorchFunctionMode):
    """A function mode that `torch.overrides.has_torch_function` does not see while it is on the stack."""

    def join(self) -> None:
        overrides._push_mode(self)
        overrides.has_torch_function = _is_overridden

    def leave(self) -> bool:
        """False where another mode lies on top."""
        if overrides._get_current_function_mode() is not self:
            return False
        overrides._pop_mode()
        if not any(isinstance(mode, UnseenMode) for mode in overrides._get_current_function_mode_stack()):
            overrides.has_torch_function = _real
        return True

    def __enter__(self) -> UnseenMode:
        self.join()
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()


def _is_overridden(args: Iterable[Any]) -> bool:
    """What `has_torch_function` says without the unseen modes."""
    if any(not isinstance(mode, UnseenMode) for mode in overrides._get_current_function_mode_stack()):
        return bool(_real(args))
    return torch._C._is_torch_function_enabled() and any(map(_overrides, args))


def _overrides(value: Any) -> bool:
    kind = type(value)
    return kind is not torch.Tensor and getattr(kind, "__torch_function__", _DISABLED) is not _DISABLED
