"""The person's functions in the place of standard ones, and of torch's."""

from __future__ import annotations

from .rows import rows_of

__all__ = ["ROWS"]

REPLACED = ("tests/integration/test_replaced_functions.py",)

ROWS = (
    *rows_of(
        "grape.originals",
        REPLACED,
        (
            "originals: the clock is the person's",
            "__all__ = [",
            "import time\n\nperf_counter_ns = lambda: time.perf_counter_ns()\n\n__all__ = [",
        ),
    ),
    *rows_of(
        "grape.runtime.dispatch.replaced",
        REPLACED,
        ("replaced: torch's own", "    return _found\n", "    return False\n"),
        ("replaced: seen once", "versions != _looked_at", "not _looked_at"),
        (
            "replaced: what Grape never calls",
            '_NEVER_CALLED = frozenset({"compile", "load",',
            '_NEVER_CALLED = frozenset({"compile",',
        ),
    ),
    *rows_of(
        "grape.runtime.dispatch.intercept",
        REPLACED,
        ("replaced: meanwhile", "if is_watched() or torch_is_replaced():", "if is_watched():"),
    ),
    *rows_of(
        "grape.tracing.recorder",
        REPLACED,
        (
            "replaced: the recorder calls the person's",
            "_base = torch._C.TensorBase",
            "_base = type('_', (), {'__getattr__': lambda _, name: lambda *a: getattr(torch.Tensor, name)(*a)})()",
        ),
    ),
    *rows_of(
        "grape.tracing.busy",
        (*REPLACED, "tests/integration/test_frames_of_a_cell.py", "tests/integration/test_cell_behaviour.py"),
        ("watched: by torch's profiler", "if _is_profiled() and not busy.profiles:", "if False:"),
        (
            "replaced: the trace function",
            "trace, profile = _gettrace(), _getprofile()",
            "trace, profile = sys.gettrace(), sys.getprofile()",
        ),
    ),
    *rows_of(
        "grape.runtime.dispatch.function_regions",
        REPLACED,
        (
            "taken over: before the region is there",
            "        trampoline = Trampoline(function, receive)\n",
            "        trampoline = Trampoline(function, receive)\n        trampoline.place()\n",
        ),
    ),
)
