"""Random loops on the tape: forwarded state, predicted positions and results that somebody keeps."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings

from grape.runtime.backends.reference.backend import ReferenceBackend
from tests.property.loops import Loop, run_loop
from tests.property.programs import seeded

PARTS = 2
EXAMPLES = 50


@pytest.mark.parametrize("part", range(PARTS))
def test_a_loop_through_grape_equals_the_eager_one(part: int) -> None:
    totals: Counter[str] = Counter()

    def loop_agrees(loop: Loop) -> None:
        run = run_loop(loop, ReferenceBackend(poison=True))
        totals.update(run.counts, loops=1, replayed=run.replays > 0)

    examples = settings.default.max_examples if not settings.default.derandomize else EXAMPLES
    settings(max_examples=examples)(seeded(part)(given(loop=Loop.strategy())(loop_agrees)))()
    assert totals["replayed"] > 0.5 * totals["loops"], totals
    assert totals["hits"] > totals["loops"], totals
    assert totals["misses"], totals
