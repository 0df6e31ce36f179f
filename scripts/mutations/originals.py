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
        "grape.runtime.dispatch.function_regions",
        REPLACED,
        (
            "taken over: before the region is there",
            "        trampoline = Trampoline(function, receive)\n",
            "        trampoline = Trampoline(function, receive)\n        trampoline.place()\n",
        ),
    ),
)
