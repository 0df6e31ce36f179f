"""A rank that fails, is slow or is interrupted: cells end as they would without Grape, and the next one works."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from tests.processes import Program, environment_of
from tests.property.stream_programs import needs_compiler

HEADS = ("", "%%grape")

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="torch without gloo"
    ),
]


def start(scenario: str, head: str, store: Path, world: int = 2) -> list[Program]:
    environment = environment_of() | {"GRAPE_REFERENCE": "1", "CUDA_VISIBLE_DEVICES": ""}
    words = ("-W", "ignore", "-m", "tests.integration.rank_cells", scenario, head)
    return [Program(*words, str(rank), str(world), str(store), environment=environment) for rank in range(world)]


def cells(ranks: list[Program], name: str) -> list[list[dict[str, Any]]]:
    """What came of each rank's cells. All ranks have to end."""
    try:
        outputs = [rank.communicate(timeout=120) for rank in ranks]
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{name} hangs") from None
    finally:
        for rank in ranks:
            rank.kill()
    for process, (_, errors) in zip(ranks, outputs, strict=True):
        assert process.returncode in (0, -9), errors[-3000:]
    return [[json.loads(line) for line in out.splitlines() if line.startswith("{")] for out, _ in outputs]


@pytest.fixture
def ran(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, list[list[dict[str, Any]]]]:
    """By the head of its cells. Each below the magic left what the plain ones left."""
    started = {head: start(request.param, head, tmp_path / f"store {n}") for n, head in enumerate(HEADS)}
    found = {head: cells(ranks, f"{request.param} below {head!r}") for head, ranks in started.items()}
    plain = found[""]
    for head in HEADS[1:]:
        for rank, (expected, seen) in enumerate(zip(plain, found[head], strict=True)):
            assert len(expected) == len(seen), f"rank {rank} ran {len(seen)} cells below {head}"
            for n, (a, b) in enumerate(zip(expected, seen, strict=True)):
                assert a["error"] == b["error"], f"rank {rank}, cell {n}: {a['text']} / {b['text']}"
                different = [name for name in a["left"] if a["left"][name] != b["left"][name]]
                assert not different, f"rank {rank}, cell {n}, below {head}: {different}"
        assert found[head][0][0]["matched"] > 0, found[head][0][0]["verdict"]
    return found


def errors(rank: list[dict[str, Any]]) -> list[str | None]:
    return [cell["error"] for cell in rank]


@pytest.mark.parametrize("ran", ["killed"], indirect=True)
def test_a_rank_that_is_killed_ends_the_cell_of_the_others(ran: dict[str, Any]) -> None:
    for first, killed in ran.values():
        assert errors(first) == ["RuntimeError", None, None]
        assert killed == []


@pytest.mark.parametrize("ran", ["slow"], indirect=True)
def test_a_slow_rank_is_waited_for(ran: dict[str, Any]) -> None:
    for ranks in ran.values():
        for rank in ranks:
            assert errors(rank) == [None, None, None]
            assert 1 <= rank[0]["took"] < 20


@pytest.mark.parametrize("ran", ["raises"], indirect=True)
def test_a_rank_that_raises_has_the_others_time_out(ran: dict[str, Any]) -> None:
    for waiting, raised in ran.values():
        assert errors(waiting) == ["RuntimeError", None, None]
        assert "imed out" in waiting[0]["text"]
        assert errors(raised) == ["ValueError", None, None]
        assert raised[0]["text"] == "of this rank's own"


@pytest.mark.parametrize("ran", ["catches"], indirect=True)
def test_an_error_that_one_rank_catches_is_its_own(ran: dict[str, Any]) -> None:
    for ranks in ran.values():
        assert [errors(rank) for rank in ranks] == [[None, None, None]] * 2


@pytest.mark.parametrize("ran", ["interrupted"], indirect=True)
def test_an_interrupt_while_a_collective_is_waited_for(ran: dict[str, Any]) -> None:
    for interrupted, other in ran.values():
        assert errors(interrupted) == ["KeyboardInterrupt", None, None]
        assert errors(other) == [None, None, None]
