"""What goes when the person lets go of it, and what must stay; functions that are defined again; the muted tracer."""

from __future__ import annotations

from .rows import rows_of

__all__ = ["ROWS"]

LETTING_GO = ("tests/integration/test_letting_go.py",)
GUARDS = ("tests/unit/test_runtime_guards.py",)

ROWS = (
    *rows_of(
        "grape.sessions.seen",
        ("tests/integration/test_looked_at_again.py",),
        ("looked at again: however slow that is", "past.again + (2 if past.dear else 1)", "past.again + 1"),
    ),
    *rows_of(
        "grape.runtime.dispatch.abandoned",
        LETTING_GO,
        (
            "abandoned: what was not reached any more stays",
            "    if found is None or guards.watches_others(found):\n        return True\n    return any(",
            "    if found is None or guards.watches_others(found):\n        return True\n    return False and any(",
        ),
        (
            "abandoned: code that is not run any more stays",
            "if found is None or guards.watches_others(found):",
            "if found is None:",
        ),
        (
            "abandoned: graphs that the cell used go",
            "[entry for entry in shape.entries if entry.replays == entry.settled_replays]",
            "list(shape.entries)",
        ),
        (
            "abandoned: what has another name goes",
            "_is_lost(region, entry, reach) and not _is_elsewhere(entry.guards, guards)",
            "_is_lost(region, entry, reach)",
        ),
        (
            "abandoned: graphs of another model as argument stay",
            "len(idle) == len(shape.entries) and _is_replaced(region, shape)",
            "False",
        ),
    ),
    *rows_of(
        "grape.runtime.guarding.guards",
        (*LETTING_GO, *GUARDS),
        (
            "abandoned: functions whose loops are outlined are others",
            "id(function) not in functions and code not in codes",
            "code not in codes",
        ),
        (
            "defined again: the first one is watched on",
            "[(again, written_code(again)) if one is function else (one, code) for one, code in self._codes]",
            "self._codes",
        ),
    ),
    *rows_of(
        "grape.runtime.state.contents",
        GUARDS,
        (
            "defined again: whatever its code",
            "any(function is other and written_code(one) == code for function, code in codes)",
            "any(function is other for function, code in codes)",
        ),
        (
            "defined again: whatever its defaults",
            "f.__closure__ is None and f.__defaults__ is None and f.__kwdefaults__ is None and not",
            "f.__closure__ is None and not",
        ),
        (
            "defined again: whatever its globals",
            "one.__globals__ is not other.__globals__ or ",
            "",
        ),
    ),
    *rows_of(
        "grape.outlining.outliner",
        LETTING_GO,
        (
            "edited: loops of other cells go as well",
            "        kept = set().union(*self._cells.values())\n",
            "        kept = begun\n",
        ),
        (
            "edited: loops stay",
            "        for key in before - kept:\n            self._drop(key)\n",
            "",
        ),
        (
            "edited: loops that were not reached go",
            "begun if finished else begun | before",
            "begun",
        ),
    ),
    *rows_of(
        "grape.runtime.regions.region_state",
        LETTING_GO,
        (
            "replaced: what was told of a shape that is none any more keeps what it held",
            "        shape.let_go()\n",
            "",
        ),
    ),
    *rows_of(
        "grape.runtime.dispatch.function_regions",
        ("tests/unit/test_intercept.py", *LETTING_GO),
        (
            "replaced: a closure's old graphs stay",
            "            if known is not None:  # the same code with another closure or other defaults\n"
            "                known[0].release()\n",
            "",
        ),
        (
            "replaced: functions that are gone keep their graphs",
            "if region.is_idle and code not in defined:",
            "if False:",
        ),
    ),
    *rows_of(
        "grape.runtime.capture.attempt",
        ("tests/unit/test_outlining.py",),
        (
            "the muted tracer hides operators",
            "            with self.request.tracer.passing_through():\n                return self.attempt(",
            "            if True:\n                return self.attempt(",
        ),
    ),
)
