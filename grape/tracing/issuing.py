"""Runs an operator that a dispatch mode was given, as the code that issued it would have run without the mode.

torch calls a mode with all dispatch keys above it excluded: those of autograd, autocast, conjugate views and version
counters. Operators that the kernel issues are then others than in plain code: in inference mode, where composite
operators come to a mode whole, `matmul` of a weight takes `bmm` for `mm`; `einsum` is not cast; what reads a conjugate
view (`linalg.pinv`) reads it as if it were none. So the keys are put back, but for those that plain code has passed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ..model.call import Args, Kwargs
from .blocks import blocks

__all__ = ["as_written", "issue"]

_Function: TypeAlias = Callable[..., object]
"""What a mode is given: an operator, or a higher-order operator."""
_Key: Any = torch._C.DispatchKey
_BITS = (_Key.Conjugate, _Key.Negative, _Key.ZeroTensor)
"""Plain kernels run with these: what a view is turned into stands in the arguments already."""
_CASTS = {"CPU": _Key.AutocastCPU, "CUDA": _Key.AutocastCUDA}
_OF_DISTANCE = {"aten::_cdist_forward", "aten::_euclidean_dist"}
_CAST_BY_OTHERS = {"CPU": _OF_DISTANCE, "CUDA": {*_OF_DISTANCE, "aten::_trilinear"}}
"""Operators whose kernels issue ones that autocast changes, but that come from one which autocast knows (`cdist`)."""
_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
"""A tensor that stands for a number of Python's comes to a mode as that number: TorchScript prints those of a graph."""
_MODES = (_Key.Python, _Key.PythonTLSSnapshot)
_exclude: Any = torch._C._dispatch_tls_set_dispatch_key_excluded
_excluded: Any = torch._C._dispatch_tls_local_exclude_set
_include: Any = torch._C._dispatch_tls_set_dispatch_key_included
_OnEntry: Any = vars(torch._C)["_RestorePythonTLSSnapshot"]
"""The keys as they were when Python called the operator, or the one that issued it."""
_restore, _put_back = _OnEntry.__enter__, _OnEntry.__exit__
_has_kernel: Any = torch._C._dispatch_has_kernel_for_dispatch_key


@dataclass(frozen=True, slots=True)
class _Way:
    """How plain code comes to the kernel of `function`.

    `counts`: through the kernel that counts versions and tracks views. `casts`: the keys of autocast that do not know
    the operator. `lists`: it writes lists of tensors, which the operators that it is made of count. `takes`:
    positions of arguments that have to be tensors.
    """

    function: _Function
    counts: bool
    casts: frozenset[Any]
    lists: bool
    takes: tuple[int, ...]


_ways: dict[int, _Way] = {}
"""By identity: operators hash slowly. The ways keep the operator alive."""


def _way_of(function: _Function) -> _Way | None:
    """None of a higher-order operator, which has no kernels, and of `detach`: torch hands that to a mode also where
    nobody calls the operator (`.data`, what autograd saves), with the keys as they are."""
    if not isinstance(function, torch._ops.OpOverload) or function is torch.ops.aten.detach.default:
        return None
    way = _ways.get(id(function))
    if way is None:
        name = function.name()
        way = _ways[id(function)] = _Way(
            function,
            _has_kernel(name, "ADInplaceOrView"),
            frozenset(
                key
                for device, key in _CASTS.items()
                if name not in _CAST_BY_OTHERS[device] and not _has_kernel(name, f"Autocast{device}")
            ),
            name.startswith("aten::_foreach_") and function._schema.is_mutable,
            tuple(
                i
                for i, one in enumerate(function._schema.arguments)
                if str(one.type) == "Tensor" and not _takes_numbers(name)
            ),
        )
    return way


_ARITHMETIC = {"add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "floor_divide"}


def _takes_numbers(name: str) -> bool:
    """True of operators that torch lets Python call with a number in the place of a tensor."""
    base = name.removeprefix("aten::").split(".")[0].removesuffix("_")
    return base in _ARITHMETIC or base in ("to", "_to_copy", "copy")


def issue(function: _Function, args: Args, kwargs: Kwargs) -> object:
    """Run an operator that a dispatch mode was given.

    What the handler of a mode of the person's issues runs with the keys of that handler, as it does without Grape's.
    """
    way = _way_of(function)
    if way is None or blocks.in_mode:
        return function(*args, **kwargs)
    for i in way.takes:
        if i < len(args) and type(args[i]) in _NUMBERS:
            number = torch.scalar_tensor(args[i], dtype=_NUMBERS[type(args[i])], device="cpu")
            args = (*args[:i], number, *args[i + 1 :])
    with as_written(function):
        return function(*args, **kwargs)


class as_written:
    """The dispatch keys in the block are those with which plain code runs the kernel of `function`."""

    __slots__ = ("_again", "_entry", "_way")

    def __init__(self, function: _Function) -> None:
        way = _way_of(function)
        assert way is not None
        self._way = way

    def __enter__(self) -> None:
        way = self._way
        self._entry: Any = _OnEntry()
        _restore(self._entry)
        excluded = _excluded()
        casts = [key for key in _CASTS.values() if not excluded.has(key)]
        passed = [key for key in casts if key not in way.casts]
        self._again: list[Any] = []
        if torch.is_inference_mode_enabled():
            among_modes = bool(torch._C._len_torch_dispatch_stack())
            for key in _MODES:
                _include(key, among_modes)
            for key in passed:
                _exclude(key, True)
            if way.counts:
                _exclude(_Key.ADInplaceOrView, True)
            return
        _put_back(self._entry, None, None, None)
        self._entry = None
        self._again = [*_BITS, *(key for key in casts if key not in passed)]
        if way.lists:
            self._again.append(_Key.ADInplaceOrView)
        for key in self._again:
            _exclude(key, False)

    def __exit__(self, *error: object) -> None:
        for key in self._again:
            _exclude(key, True)
        if self._entry is not None:
            _put_back(self._entry, None, None, None)
