"""Beside a process group streams serve and regions stand aside: each rank ends with the numbers of a plain run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed

from tests.processes import Program, environment_of

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="torch without gloo"
)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_train_as_without_grape(world: int, tmp_path: Path) -> None:
    """DDP (module, whole step, inner module, `no_sync`), FSDP2, tensor parallelism, collectives; graphs from before the
    group wait.
    """
    environment = environment_of() | {"GRAPE_REFERENCE": "1", "CUDA_VISIBLE_DEVICES": ""}
    words = ("-m", "tests.integration.distributed_ranks")
    ranks = [
        Program(*words, str(rank), str(world), str(tmp_path / "store"), environment=environment)
        for rank in range(world)
    ]
    try:
        outputs = [rank.communicate(timeout=240) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for out, err in outputs:
        assert out == "done\n", out + err[-3000:]
