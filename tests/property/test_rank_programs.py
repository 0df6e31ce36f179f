"""Programs of several ranks: what each leaves behind under a stream is what it leaves behind without."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed

from tests.property.rank_team import Team
from tests.property.stream_programs import needs_compiler

DEVICES = ("cpu", "pretended")
PROGRAMS = 12
CASES = (
    "beside_what_is_in_flight",
    "around_what_is_in_flight",
    "a_callback_that_reads",
    "a_callback_that_writes",
    "a_callback_for_its_effect",
    "views_of_one_bucket",
    "a_backend_by_itself",
    "comm_hooks",
    "zero_redundancy",
    "uneven_inputs",
    "averaged_models",
    "pipelines",
    "checkpointed",
    "distributed_tensors",
    "objects",
    "threads_with_collectives",
    "a_long_pipeline_of_works",
    "hooks_in_c",
    "local_steps",
    "sharded_in_lower_precision",
    "tensors_cut_by_sequence",
    "decoding_without_gradients",
    "memory_that_is_shared",
    "a_backward_on_a_thread",
    "scattered_and_reduced_in_lists",
)

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="torch without gloo"
    ),
]


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    with Team(4) as made:
        yield made


def same(team: Team, name: str, world: int, device: str, **task: Any) -> int:
    """Compare one program; how many operators matched, on all ranks."""
    answers = team.run(name, world, device, **task)
    assert not any(answer["different"] for answer in answers), f"{name} differs on {device}: {answers}"
    return sum(answer["matched"] for answer in answers)


def agree(team: Team, seed: int, iterations: int) -> int:
    r = random.Random(seed)
    world, device = r.choice([2, 2, 3, 4]), r.choice(DEVICES)
    return same(team, f"program {seed} of {world} ranks", world, device, seed=seed, iterations=iterations)


def test_programs_of_ranks_agree_bit_by_bit(team: Team) -> None:
    matched = [agree(team, seed, 20) for seed in range(PROGRAMS)]
    assert sum(n > 0 for n in matched) > 0.7 * PROGRAMS


@pytest.mark.parametrize("case", CASES)
def test_cases_agree_bit_by_bit(team: Team, case: str) -> None:
    for device in DEVICES:
        assert same(team, case, 2, device, case=case) > 50


@pytest.mark.random_long
@pytest.mark.timeout(0)
def test_many_programs_of_ranks_agree_bit_by_bit(team: Team, request: pytest.FixtureRequest) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    draw, matched = random.Random(seed), 0
    for _ in range(request.config.getoption("--grape-random")):
        matched += agree(team, draw.randrange(10_000, 1 << 40), draw.choice([20, 20, 60])) > 0
    print(f"programs that Random({seed}) drew: {matched} of them matched")
