"""`grape demo`, as `make demo` runs it."""

from __future__ import annotations

import pytest
import torch

from tests.processes import lines_of


@pytest.mark.skipif(torch.cuda.is_available(), reason="what it says of a GPU is in benchmarks/main_job.py")
def test_the_demo_shows_the_verdict_of_a_real_run() -> None:
    said = "\n".join(lines_of("import sys; from grape.cli import main; sys.exit(main(['demo']))"))
    assert "no GPU here: nothing gets faster" in said
    assert "1 part of this cell could be a CUDA graph, same results" in said
    assert said.rstrip().endswith("All 100 tokens are those of the same loop without %%grape.")
