"""`grape demo`, as `make demo` runs it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="what it says of a GPU is in benchmarks/main_job.py")
def test_the_demo_shows_the_verdict_of_a_real_run() -> None:
    command = [sys.executable, "-c", "import sys; from grape.cli import main; sys.exit(main(['demo']))"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no GPU here: nothing gets faster" in done.stdout
    assert "1 part of this cell could be a CUDA graph, same results" in done.stdout
    assert done.stdout.rstrip().endswith("All 100 tokens are those of the same loop without %%grape.")
