"""The evaluation as its first lines say, with tiny sizes on the CPU; and one cell that ends badly among others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.evaluate.__main__ import FIXED
from tests.processes import environment_of, ran

# Where they are set it does not start itself again.
SET = FIXED | {"GRAPE_REFERENCE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def run(*command: str) -> str:
    done = ran(*command, environment=environment_of() | SET, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cells(out: Path) -> dict[tuple[str, str], dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in (out / "cells").glob("*.json")]
    return {(one["row"], one["column"]): one for one in found}


ROWS = ("gpt2_decode", "dlrm_training", "turbulence", "early_exit", "tagger_lengths", "operators_10", "cells_10")


def test_rows_of_each_kind_run_and_leave_the_bits_of_eager(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    command = ("-m", "benchmarks.evaluate", "--quick", "--out", str(tmp_path), "--only", *ROWS)
    said = run(*command)
    found = cells(tmp_path)
    for row in ROWS:
        one = found[row, "grape"]
        assert one["outcome"] == "measured" and one["repeatable"] and one["agreement"]["identical"], (one, said)
        assert one["eager_agreement"]["identical"] and one["machine"]["workers"] == 1, one
    for row in ("gpt2_decode", "dlrm_training", "turbulence"):
        one = found[row, "by_hand"]
        assert one["outcome"] == "measured" and one["agreement"]["identical"], (one, said)
    assert found["early_exit", "by_hand"]["outcome"] == "not possible"
    assert "| Grape as shipped |" in (tmp_path / "evaluation.md").read_text()
    assert "0 of 0 pairs" in run(*command)  # a run goes on where the last one ended


BAD = """
import os, sys, time
from pathlib import Path
import torch
from benchmarks.evaluate.job import Group, inference
from benchmarks.evaluate.running import Cell, Limits, run_all, runnable

group = Group("paper", "")

def well(size):
    return inference(size, torch.nn.Linear(4, 4), [(torch.ones(2, 4),)] * 3)

def crashes(size):
    os.abort()

def hangs(size):
    time.sleep(1000)

def fills_memory(size):
    raise torch.OutOfMemoryError("no memory left")

class Reads(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) * x.sum().item()

def reads(size):
    return inference(size, Reads(4, 4), [(torch.ones(2, 4),)] * 3)

for build in (crashes, hangs, fills_memory, reads, well):
    group.row("")(build)
group.add("absent", "", well, "no_such_module")
out = Path(sys.argv[1])
cells = runnable([Cell(row=row, column="by_hand") for row in group.rows], out)
limits = Limits(seconds=1.0, hard=20.0, ends=time.monotonic() + 200)
run_all(cells, out, quick=True, workers=2, limits=limits)
"""


def test_a_cell_that_ends_badly_leaves_the_others(tmp_path: Path) -> None:
    run("-c", BAD, str(tmp_path))
    found = {row: (one["outcome"], one.get("why", "")) for (row, _), one in cells(tmp_path).items()}
    assert found["crashes"] == ("crash", "signal SIGABRT, in building the row")
    assert found["hangs"] == ("time-out", "longer than 20 s, in building the row")
    assert found["fills_memory"] == ("the row fails", "OutOfMemoryError: no memory left")
    assert found["reads"][0] == "failed" and "reads a tensor's value on the host" in found["reads"][1]
    assert found["absent"] == ("not installed", "no_such_module")
    assert found["well"][0] == "measured"
