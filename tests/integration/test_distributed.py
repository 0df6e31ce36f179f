"""Beside a process group streams serve and regions stand aside: each rank ends with the numbers of a plain run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="torch without gloo"
)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_train_as_without_grape(world: int, tmp_path: Path) -> None:
    """DDP (module, whole step, inner module, `no_sync`), FSDP2, tensor parallelism, collectives; graphs from before the
    group wait.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "tests.integration.distributed_ranks"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(tmp_path / "store")],
            cwd=ROOT,
            env=environment | {"GRAPE_REFERENCE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        outputs = [rank.communicate(timeout=240) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for out, err in outputs:
        assert out == "done\n", out + err[-3000:]
