"""Operator streams: each check of the C++ that recurrent layers and `set_` need, made blind in an extension of the row.

python scripts/mutation_table.py streams
"""

from __future__ import annotations

from .rows import of_streams

__all__ = ["ROWS"]

RECURRENT = "tests/unit/test_streams_recurrent.py"
REFERRING = "tests/unit/test_streams_referring.py"


ROWS = (
    of_streams(
        "recurrent layers with dropout draw nothing",
        (RECURRENT, "-k", "draws_forward_only"),
        "operators.h",
        ("return is(dropout, 0.0) || (always", "return hands_on || is(dropout, 0.0) || (always"),
    ),
    of_streams(
        "recurrent layers without dropout draw",
        (RECURRENT, "-k", "without_dropout"),
        "operators.h",
        (' || (hands_on && name == "dropout")', ""),
    ),
    of_streams(
        "recurrent layers draw where they do not train",
        (RECURRENT, "-k", "does_not_train"),
        "operators.h",
        (" || (always == Reason::Random && is(training, false))", ""),
    ),
    of_streams(
        "what a recurrent layer kept is not changed by its backward pass",
        (RECURRENT, "-k", "forward_pass_kept"),
        "operators.h",
        ('(argument.name() == "reserve" && schema.name().find("_rnn_backward") != std::string::npos)', "false"),
    ),
    of_streams(
        "an argument that comes back is memory that somebody else has",
        (RECURRENT, "-k", "without_dropout"),
        "recorder.h",
        ("if (op.hands_on && output.argument < 0 && value.isTensor())", "if (false)"),
    ),
    of_streams(
        "lengths of packed sequences deferred",
        (RECURRENT, "-k", "packed"),
        "recorder.h",
        ("if (step.run == Reason::None && op.is_packed(stack)) step.run = Reason::Host;", ""),
    ),
    of_streams(
        "set_ cuts what is pending",
        (REFERRING, "-k", "pending"),
        "engine.h",
        ("if (op.refers && Referring::keeps_memory(op, *stack, *device_)) return run(op, below, stack);", ""),
    ),
    of_streams(
        "set_ grows memory that is pending",
        (REFERRING, "-k", "has_to_grow"),
        "referring.h",
        ("      if (last >= room) return false;\n", ""),
        ("    return last < room;\n", "    return true;\n"),
    ),
    of_streams(
        "set_ by the size of another type",
        (REFERRING, "-k", "larger_type"),
        "referring.h",
        ("static_cast<__int128>(storage.nbytes() / itemsize)", "static_cast<__int128>(storage.nbytes() / 4)"),
    ),
)
