"""Operator streams: what is known of sizes that grow, made blind in an extension of the row.

python scripts/mutation_table.py streams
"""

from __future__ import annotations

from .rows import of_streams

__all__ = ["ROWS"]

GROWTH = "tests/unit/test_streams_growth.py"


ROWS = (
    of_streams(
        "operators whose sizes grow are recorded with them",
        (GROWTH, "-k", "lies_between"),
        "recorder.h",
        ("    if (step.run == Reason::None && sizes.grow) step.run = Reason::Sizes;\n", ""),
    ),
    of_streams(
        "all sizes that are new grow",
        (GROWTH, "-k", "all_sizes_are_new"),
        "growth.h",
        (" && amid_others(first) && amid_others(late)", ""),
    ),
    of_streams(
        "sizes of a growing kind that stay are taken for grown",
        (GROWTH, "-k", "kind_that_stay"),
        "growth.h",
        ("last_.grow = !met.stays;", "last_.grow = true;"),
    ),
    of_streams(
        "sizes that grow no more run as written for ever",
        (GROWTH, "-k", "no_more"),
        "decider.h",
        ("|| is_settled(op, stack))", ")"),
    ),
    of_streams(
        "sizes that come often are no others than those that grow",
        (GROWTH, "-k", "sweep"),
        "growth.h",
        ("return kind.stayed - first.stayed <= STAYED && amid", "return amid"),
    ),
    of_streams(
        "strides that change are another operator",
        (GROWTH, "-k", "strides"),
        "matcher.h",
        ("reason = Reason::Strides;", "return false;"),
    ),
)
