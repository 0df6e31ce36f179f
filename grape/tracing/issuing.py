"""Runs an operator that a dispatch mode was given, as the code that issued it would have run without the mode.

torch calls a mode with all dispatch keys above it excluded: those of autograd, autocast, conjugate views and version
counters. Operators that the kernel issues are then others than in plain code: in inference mode, where composite
operators come to a mode whole, `matmul` of a weight takes `bmm` for `mm`; `einsum` is not cast; what reads a conjugate
view (`linalg.pinv`) reads it as if it were none. So the keys are put back, but for those that plain code has passed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

from ..model.call import Args, Kwargs
from .blocks import blocks

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
_exclude: Any = torch._C._dispatch_tls_set_dispatch_key_excluded
_excluded_now: Any = partial(torch._C._dispatch_tls_local_exclude_set)
_OnEntry: Any = vars(torch._C)["_RestorePythonTLSSnapshot"]
"""The keys as they were when Python called the operator, or the outermost of those that issued it."""
_restore, _put_back = _OnEntry.__enter__, _OnEntry.__exit__
_NO_ERROR = (None, None, None)
_call: Callable[[Any], Any] = partial.__call__
_is_known: Callable[[str], bool] = torch._C._dispatch_has_kernel
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
    """None of a higher-order operator, which has no kernels, and of `prim.device`, which a fake tensor asks a mode for,
    where an error would end the process. None of `detach`: torch hands that to a mode also where nobody calls it
    (`.data`, what autograd saves), with the keys as they are.
    """
    if not isinstance(function, torch._ops.OpOverload) or function is torch.ops.aten.detach.default:
        return None
    way = _ways.get(id(function))
    if way is None:
        name = function.name()
        if not _is_known(name):
            return None
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
    """True of operators that torch lets Python call with a number in the place of a tensor.

    `prims` are all of them: what forward derivatives are made of multiplies by numbers, and has them of one type.
    """
    base = name.removeprefix("aten::").split(".")[0].removesuffix("_")
    return name.startswith("prims::") or base in _ARITHMETIC or base in ("to", "_to_copy", "copy")


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
    return _run(way, function, args, kwargs)


def as_written(function: _Function, run: Callable[[], object]) -> object:
    """What `run` gives with the dispatch keys with which plain code runs the kernel of `function`."""
    way = _way_of(function)
    assert way is not None
    return _run(way, run, (), {})


def _run(way: _Way, run: _Function, args: Args, kwargs: Kwargs) -> object:
    outer = _thread.casts
    casts = _casts_on_entry() if outer is None else outer
    again = [*_BITS, *(key for key in casts if key in way.casts)]
    if not way.counts if torch.is_inference_mode_enabled() else way.lists:
        again.append(_Key.ADInplaceOrView)
    try:
        _thread.casts = tuple(key for key in casts if key in way.casts)
        for key in again:
            _exclude(key, False)
        return run(*args, **kwargs)
    finally:  # whatever raises in between: torch puts the keys back when the handler has ended
        _thread.casts = outer
        for key in again:
            _exclude(key, True)


class _Thread(threading.local):
    """`casts`: the keys of autocast that are not excluded in the kernel that this thread runs below a mode of Grape's;
    None outside of all."""

    casts: tuple[Any, ...] | None = None


_thread = _Thread()


def _casts_on_entry() -> list[Any]:
    """Keys of autocast that were not excluded where Python called the operator.

    The keys as they were are put back for the look at them, and no code of Python's may run meanwhile, such as a signal
    handler: it would find no mode where they promise one, and what it raised would end the process in torch. So three
    functions of C run in a row, with no byte code between them.
    """
    entry = _OnEntry()
    _, excluded, _ = tuple(map(_call, (partial(_restore, entry), _excluded_now, partial(_put_back, entry, *_NO_ERROR))))
    return [key for key in _CASTS.values() if not excluded.has(key)]


@contextmanager
def without_outer_casts() -> Iterator[None]:
    """Have autocast cache no casts, where it was entered before: one cached there is an operator that a trace would not
    show, and a capture would not repeat.

    Where gradients are recorded the cache decides in which dtype those of a weight that is used twice are added up, so
    it is left alone; so are casts of a block inside, which begins and ends with an empty cache.
    """
    enabled = torch.is_autocast_cache_enabled()
    if torch.is_grad_enabled() or not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
        yield
        return
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)
