"""Profilers of torch see what runs while they are on: what was pending before has to be issued before they begin.

While one is on, the engine defers nothing; a kernel launched late would be outside of the range that it belongs to.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch.autograd.profiler

_HOOKS = ("launch_enter_hook", "launch_exit_hook")
_BEGINS = ("_prepare_profiler", "_enable_profiler")


def are_told() -> bool:
    """Whether somebody hears of each kernel that compiled code launches: a profiler of torch, or hooks of Triton."""
    if torch.autograd.profiler._is_profiler_enabled or torch._C._autograd._profiler_enabled():
        return True
    runtime = getattr(sys.modules.get("triton.knobs"), "runtime", None)
    hooks = (getattr(runtime, name, None) for name in _HOOKS)
    return any(hook is not None and bool(getattr(hook, "calls", True)) for hook in hooks)


def watch(flush: Callable[[], None]) -> Callable[[], None]:
    """Have `flush` called before a profiler of torch is switched on; the result undoes it."""
    module: object = torch.autograd.profiler
    plain = {name: getattr(module, name) for name in _BEGINS}

    def behind_flush(begin: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            flush()
            return begin(*args, **kwargs)

        return call

    for name, begin in plain.items():
        setattr(module, name, behind_flush(begin))

    def undo() -> None:
        for name, begin in plain.items():
            setattr(module, name, begin)

    return undo
