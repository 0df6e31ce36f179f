"""A truth value that is only known on the device, and what is one."""

from __future__ import annotations

from typing import NoReturn

import torch

from .active import refuse


class Flag:
    """A Python truth value that is only known on the device: a 0-dim bool tensor that can be tested and nothing else.

    It stands where the person's code has `True` or `False` (`found = True` in a branch, `not x`, `break`). It is no
    tensor on purpose: `True + True` is 2, and a bool tensor would give another result.
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def _refuse(self, *_: object) -> NoReturn:
        raise refuse("a truth value that is only known on the device is used as a Python value", "GR102")

    __bool__ = __int__ = __float__ = __index__ = __hash__ = __eq__ = __ne__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = __neg__ = _refuse
    __str__ = __repr__ = __format__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()


def as_predicate(value: Flag | torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The 0-dim bool tensor that is true where Python's `bool(value)` is; computed on the device, in `out` if given."""
    if isinstance(value, Flag):
        if out is None:
            return value.tensor
        value = value.tensor
    if value.numel() != 1:
        raise refuse(f"a tensor of shape {tuple(value.shape)} has no truth value", "GR102")
    with torch.no_grad():
        # A copy: the tensor may be overwritten inside the block that it decides on. A kernel makes it, because a clone
        # is a memcpy node, which takes several times as long in a body on CUDA.
        return torch.ne(value.detach().reshape(()), 0, out=out)
