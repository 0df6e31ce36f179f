"""When the person's code first uses a GPU. Until then nothing of Grape's does: a context takes time and memory, and a
process that has one cannot fork others that use the GPU.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from ..originals import environ


def unused() -> bool:
    """True where there is a GPU, and this process has not used it."""
    return torch.cuda.is_available() and not torch.cuda.is_initialized()


def own_device() -> int:
    """The index of the device whose operators are deferred: the current one, or that of the rank, which a script that
    `torchrun` started makes current later. Does not use it.
    """
    current = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    rank = environ.get("LOCAL_RANK", "")
    return int(rank) if current == 0 and rank.isdecimal() and int(rank) < torch.cuda.device_count() else current


def when_used(call: Callable[[], None]) -> Callable[[], None]:
    """Have `call` run once, right behind the first use of CUDA in this thread; what it returns takes that back.

    Not where the dispatcher is in a state that ends with a block or a call: `torch.inference_mode` gives it back as it
    found it, without what began inside. A later use outside, or the caller at its next statement, is in time then. Not
    in a process that was forked meanwhile.

    Where the first use is to choose a device, that is done first: going back to another one gives it a context.
    """
    cuda: Any = torch.cuda
    thread, process, state = threading.get_ident(), os.getpid(), _dispatching()
    begin, choose = cuda._lazy_init, cuda.set_device  # torch's C++ looks up the first, too
    chooses = done = False

    def undo() -> None:
        nonlocal done
        done = True
        for name, ours, plain in (("_lazy_init", _lazy_init, begin), ("set_device", set_device, choose)):
            if getattr(cuda, name) is ours:
                setattr(cuda, name, plain)

    def look() -> None:
        if done or chooses or not cuda.is_initialized():
            return
        if threading.get_ident() == thread and os.getpid() == process and _dispatching() == state:
            undo()
            call()

    def _lazy_init() -> None:
        begin()
        look()

    @functools.wraps(choose)
    def set_device(device: object) -> None:
        nonlocal chooses
        chooses = threading.get_ident() == thread
        try:
            choose(device)
        finally:
            chooses = False
        look()

    cuda._lazy_init, cuda.set_device = _lazy_init, set_device
    return undo


def _dispatching() -> tuple[object, ...]:
    """What the block that this thread is in, or the compiler at work, would give back at its end."""
    included = repr(torch._C._dispatch_tls_local_include_set())
    return included, torch.is_inference_mode_enabled(), torch._guards.CompileContext.try_get()
