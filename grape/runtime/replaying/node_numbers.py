"""Autograd numbers the nodes that a thread makes; of those that are ready, a backward pass runs the highest first.

A pass that makes nodes itself (`create_graph=True`) numbers them in the thread in which it runs, on a CUDA device one
of autograd's own. How those numbers compare with the ones of a forward pass decides in which order gradients are added
up, and so their last bits. A replay makes no nodes, and a capture makes more than the call that it serves: numbers are
left out after the former, and after the latter as many in each of autograd's threads.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from ..once import tried_once
from ..state import unseen_handles

T = TypeVar("T")
_ONE_MORE = "_ZN2at15sequence_number17get_and_incrementEv"
"""`at::sequence_number::get_and_increment()`."""

numbered: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
"""How many numbers this thread has given away."""


@tried_once
def is_supported() -> bool:
    """True where numbers can be left out with this build of torch: tried on those of a thread that ends."""
    if _search() is None:
        return False
    before = numbered()
    advance(3)
    return numbered() - before == 3


def advance(count: int) -> None:
    """Leave out `count` numbers, in this thread."""
    search = _search()
    if search is None:
        return
    goal = numbered() + count
    while (left := goal - numbered()) > 0:
        search(left)


@functools.cache
def _search() -> Callable[[int], object] | None:
    """Calls torch's counter so many times, or until it gives a number whose last 32 bits are zero.

    That is what a linear search through so many elements does with its comparison, in the C library of POSIX: one call
    from Python, nanoseconds for each number.
    """
    try:
        library = ctypes.PyDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        counter = ctypes.cast(getattr(library, _ONE_MORE), ctypes.c_void_p)
        search = ctypes.PyDLL(None).lfind
    except (OSError, AttributeError, TypeError):  # other systems have other libraries
        return None
    search.restype = ctypes.c_void_p
    search.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    nothing = ctypes.create_string_buffer(1)

    def run(count: int) -> object:
        return search(nothing, nothing, ctypes.byref(ctypes.c_size_t(count)), 0, counter)

    return run


def _catch_up(count: int) -> None:
    """This thread has given away `count` numbers too many: so does each thread in which a device's backward runs."""
    if count <= 0 or not torch.cuda.is_initialized():
        return
    devices = [i for i in range(torch.cuda.device_count()) if torch._C._cuda_hasPrimaryContext(i)]  # type: ignore[attr-defined]
    count += len(devices)  # `in_backward` takes one each
    for index in devices:
        with suppress(Exception):  # whatever stands in the way of a backward here must not end the person's call
            in_backward(torch.device("cuda", index), lambda: advance(count))


@dataclass(slots=True)
class Unnumbered:
    """`persons`: the nodes that the person's code made meanwhile, once."""

    persons: int = 0


_inside = threading.local()


@contextmanager
def unnumbered() -> Iterator[Unnumbered]:
    """Who makes nodes inside is Grape, but for those that are booked on what this yields."""
    booked = Unnumbered()
    if getattr(_inside, "now", False):
        yield booked
        return
    before, _inside.now = numbered(), True
    try:
        yield booked
    finally:
        _inside.now = False
        _catch_up(numbered() - before - booked.persons)


class instead_of:
    """Count what is served in the block as a call of the person's that makes `nodes` nodes; none where it fails."""

    __slots__ = ("_before", "_was", "nodes")

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    def __enter__(self) -> instead_of:
        self._before, self._was = numbered(), getattr(_inside, "now", False)
        _inside.now = True
        return self

    def __exit__(self, *error: object) -> None:
        _inside.now = self._was
        missing = self.nodes - (numbered() - self._before)
        if missing < 0 and not self._was:
            _catch_up(-missing)
        advance(missing)


def in_backward(device: torch.device, function: Callable[[], T]) -> T | None:
    """Run `function` in the thread in which the device's backward passes run; None where that is this one.

    Takes a number of this thread itself.
    """
    caller, found = threading.get_ident(), []

    def hook(_: object) -> None:
        if threading.get_ident() != caller:
            found.append(function())

    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.empty((), device=device, requires_grad=True)
        out = leaf.view(())
        assert out.grad_fn is not None
        with unseen_handles() as handles:
            handles.append(out.grad_fn.register_prehook(hook))
        torch.autograd.grad(out, leaf)  # with a gradient of ours torch imports what takes it a second
    return found[0] if found else None
