"""Random programs on a GPU: what they leave behind under operator streams is what they leave behind without."""

from __future__ import annotations

import collections
import random
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo

from benchmarks._numbering import level
from tests.property.stream_programs import needs_compiler, outcome

PROGRAMS = 40

pytestmark = [pytest.mark.filterwarnings("ignore"), needs_compiler]


@pytest.fixture(autouse=True)
def the_same_kernels_each_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    yield
    torch.cuda.synchronize()


def agree(seed: int, iterations: int) -> str:
    """Compare one program, if it repeats itself; what became of it."""
    plains = []
    for _ in range(2):
        level()
        plains.append(outcome(seed, iterations, stream=False, device="cuda")[0])
    if plains[0] != plains[1]:
        return "does not repeat itself"
    level()
    result, evidence = outcome(seed, iterations, stream=True, device="cuda")
    assert evidence is not None, "a stream must open"
    different = [place for place, (a, b) in enumerate(zip(plains[0], result, strict=True)) if a != b]
    assert not different, f"program {seed} differs at {different[:5]}: {evidence}"
    return "launched graphs" if evidence.launched else "matched" if evidence.matched else "nothing matched"


def test_programs_agree_bit_by_bit(request: pytest.FixtureRequest) -> None:
    draw, more = random.Random(), request.config.getoption("--grape-random")
    seeds = [draw.randrange(10_000, 1 << 40) for _ in range(more)] or range(PROGRAMS)
    found = collections.Counter(agree(seed, 40) for seed in seeds)
    print(found)
    assert found["launched graphs"] > 0.5 * len(seeds)
    assert found["does not repeat itself"] < 0.2 * len(seeds)
