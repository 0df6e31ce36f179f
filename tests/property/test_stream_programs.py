"""Random programs: what they leave behind under operator streams is what they leave behind without."""

from __future__ import annotations

import collections
import random

import pytest
import torch
import torch._dynamo  # noqa: F401 - optimizers import it, and it wraps functions of torch for good

from tests.property.stream_programs import Program, device, needs_compiler, outcome  # noqa: F401
from tests.property.stream_reuse import Reuse

PARTS = 3
PROGRAMS = 24  # of each part
KINDS: tuple[type[Program], ...] = (Program, Reuse)

pytestmark = [pytest.mark.filterwarnings("ignore"), needs_compiler]


def agree(seed: int, iterations: int, kind: type[Program] = Program) -> int:
    """Compare one program; how many of its operators matched."""
    plain, _ = outcome(seed, iterations, stream=False, kind=kind)
    result, evidence = outcome(seed, iterations, stream=True, kind=kind)
    assert evidence is not None, "a stream must open"
    different = [place for place, (a, b) in enumerate(zip(plain, result, strict=True)) if a != b]
    assert not different, f"program {seed} of {kind.__name__} differs at {different[:5]}: {evidence}"
    return evidence.matched


@pytest.mark.parametrize("part", range(PARTS))
def test_programs_agree_bit_by_bit(part: int) -> None:
    matched = [agree(seed, 25) for seed in range(part * PROGRAMS, (part + 1) * PROGRAMS)]
    assert sum(n > 0 for n in matched) > 0.4 * PROGRAMS  # some settings doubt by the clock


@pytest.mark.parametrize("part", range(2))
def test_programs_about_memory_agree_bit_by_bit(part: int) -> None:
    matched = [agree(seed, 25, Reuse) for seed in range(part * 20, (part + 1) * 20)]
    assert sum(n > 0 for n in matched) > 10


@pytest.mark.random_long
@pytest.mark.timeout(0)
def test_many_programs_agree_bit_by_bit(request: pytest.FixtureRequest) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    draw, found = random.Random(seed), collections.Counter[str]()
    for _ in range(request.config.getoption("--grape-random")):
        matched = agree(draw.randrange(10_000, 1 << 40), draw.choice([25, 25, 60, 120]), draw.choice(KINDS))
        found["matched" if matched else "nothing matched"] += 1
    print(f"programs that Random({seed}) drew: {dict(found)}")
