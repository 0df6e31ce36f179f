"""Iterations ahead, the value guards, and modes that nobody sees."""

from __future__ import annotations

from .rows import rows_of

__all__ = ["ROWS"]

NAMES = ("tests/unit/test_early_stop_names.py",)
AHEAD = ("tests/unit/test_early_stop.py", *NAMES)
READS = (
    "tests/unit/test_value_guards.py",
    "tests/unit/test_runtime_effects.py",
    "tests/unit/test_runtime_arguments.py",
    "tests/unit/test_hostile_runtime.py",
)
UNSEEN = ("tests/unit/test_unseen_modes.py",)

ROWS = (
    *rows_of(
        "grape.runtime.predication.early_stop",
        AHEAD,
        (
            "ahead: a wasted iteration does its work",
            "after, (stays, may_be) = lowering.cond(going.tensor, iterate, lambda: (state, NOTHING), certain=True)",
            "after, (stays, may_be) = iterate()",
        ),
        (
            "ahead: copies though others hold the tensor",
            "    return all(holders.alone(state, position)",
            "    return all(True or holders.alone(state, position)",
        ),
        (
            "ahead: wasted iterations not counted",
            "        step.waste(issued - stopped_at)\n",
            "        step.waste(0)\n",
        ),
        (
            "ahead: any number of flags unknown",
            "flag = poll.take(wait=poll.pending > AHEAD)",
            "flag = poll.take(wait=False)",
        ),
        (
            "ahead: the last flags not read",
            "    while poll.pending and (stopped_at is None or known < stopped_at):\n",
            "    while False:\n",
        ),
        (
            "ahead: names that are not bound",
            "    if any(value is UNBOUND or value is NOTHING for value in given):\n        return None\n",
            "",
        ),
        (
            "ahead: functions with defaults",
            " and not function.__defaults__ and not function.__kwdefaults__",
            "",
        ),
        (
            "ahead: a flag that is a number",
            "        return (value != 0).reshape(())\n",
            "        return value.reshape(())\n",
        ),
    ),
    *rows_of(
        "grape.runtime.predication.holders",
        NAMES,
        ("holders: views", "            and _memory_uses(value) == _MEMORY_USES\n", ""),
        ("holders: names", "            and found == expected\n", ""),
        ("holders: weak references", "            and getweakrefcount(value) == 0\n", ""),
        (
            "holders: what was bound again stays the loop's",
            "known if new is known else None for",
            "known for",
        ),
        ("holders: what was handed on counts as made", "new if new is not old else known for", "new for"),
    ),
    *rows_of(
        "grape.runtime.replaying.value_guards",
        READS,
        (
            "value_guards: draws random numbers, or writes",
            'if op.kind == "dynamic" or op.draws or any(number not in born for number in op.written):',
            "if False:",
        ),
        ("value_guards: computes without bound", "MAX_SLICE = 12\n", "MAX_SLICE = 10**6\n"),
        (
            "value_guards: other dtypes of a view",
            "        if any(view.dtype != dtypes[view.storage] for i in part for view in trace.ops[i].tensors()):\n",
            "        if False:\n",
        ),
        (
            "value_guards: constants that the code writes",
            "        if any(number in call.constants for i in part for number in trace.ops[i].written):\n",
            "        if False:\n",
        ),
        (
            "value_guards: the first of two arguments in one memory",
            " or int(leaf.storage_offset()) < int(leaves[first[number]].storage_offset()):",
            ":",
        ),
        (
            "value_guards: base of a view of an argument",
            "(leaves[index], int(leaves[index].storage_offset())) for",
            "(leaves[index], 0) for",
        ),
    ),
    *rows_of(
        "grape.runtime.replaying.entry",
        READS,
        (
            "value_guards: 1, True and 1.0 one value",
            "    return all(type(a) is type(b) and repr(a) == repr(b) for a, b in zip(found, expected, strict=True))\n",
            "    return all(a == b for a, b in zip(found, expected, strict=True))\n",
        ),
    ),
    *rows_of(
        "grape.tracing.unseen",
        UNSEEN,
        (
            "unseen: seen",
            "        overrides._push_mode(self)\n        _replace(_real, _blind)\n",
            "        overrides._push_mode(self)\n",
        ),
        (
            "unseen: the question stays answered",
            "            _replace(_blind, _real)\n",
            "            pass\n",
        ),
        (
            "unseen: modes of the person too",
            "        if not isinstance(mode, UnseenMode):\n            return bool(_real[name](*given))\n",
            "        if not isinstance(mode, UnseenMode):\n            continue\n",
        ),
        ("unseen: subclasses too", "if any(map(_overrides, among)):", "if False:"),
        (
            "unseen: subclasses though overriding is off",
            "    if not torch._C._is_torch_function_enabled():\n        return False\n",
            "",
        ),
        (
            "unseen: left from below another mode",
            "        if overrides._get_current_function_mode() is not self:\n            return False\n",
            "",
        ),
    ),
)
