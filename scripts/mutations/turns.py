"""Functions and regions that take turns: what one of them does and another one sees, and graphs that results block."""

from __future__ import annotations

from .rows import rows_of

__all__ = ["ROWS"]

NUMBERS = ("tests/unit/test_node_numbers.py",)
MODES = ("tests/unit/test_unseen_modes.py",)
LOOPS = ("tests/unit/test_outlining.py", "-k", "earn or looks or last_run")

ROWS = (
    *rows_of(
        "grape.tracing.escapes",
        MODES,
        (
            "turns: what Grape calls for the person is a look of its own",
            "return is_grape_code(code.co_filename) and not _NAMES.isdisjoint(code.co_names)",
            "return is_grape_code(code.co_filename)",
        ),
        (
            "turns: what Grape looks at is an escape of the person's",
            "if func in _ESCAPES and not _looks_for_itself(sys._getframe(1).f_code):",
            "if func in _ESCAPES:",
        ),
    ),
    *rows_of(
        "grape.runtime.replaying.node_numbers",
        NUMBERS,
        (
            "turns: a backward of Grape's own looks like a hook",
            "            handles.append(out.grad_fn.register_prehook(hook))\n",
            "            out.grad_fn.register_prehook(hook)\n",
        ),
    ),
    *rows_of(
        "grape.runtime.state.hooks",
        NUMBERS,
        (
            "turns: a handle that another thread took is forgotten",
            "    if RemovableHandle.next_id == number + len(handles):\n",
            "    if True:\n",
        ),
    ),
    *rows_of(
        "grape.runtime.regions.region",
        LOOPS,
        (
            "turns: looks for another graph do not end",
            "return looks < 2 * LATELY and costs.have_earned_another(last)",
            "return costs.have_earned_another(last)",
        ),
        (
            "turns: what a cell has spent stands in the way of another graph",
            "return looks < 2 * LATELY and costs.have_earned_another(last)",
            "return False",
        ),
    ),
    *rows_of(
        "grape.runtime.regions.costs",
        LOOPS,
        (
            "turns: graphs earn another by less than it takes",
            "return saved_ms > sum(self.durations_ms) + self.takes_ms(median_ms)",
            "return saved_ms > sum(self.durations_ms)",
        ),
    ),
)
