"""What public functions say they return can be used: of a person's function nothing is known, which is `Any`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

USES = """
import grape, torch

@grape.graph
def step(x: torch.Tensor) -> torch.Tensor:
    return x

step(torch.ones(1)).sum()
grape.cond(torch.ones(()) > 0, lambda x: x, lambda x: x, (torch.ones(1),)).sum()
grape.while_loop(lambda x: x.sum() > 1, lambda x: x, (torch.ones(1),))[0].sum()
for batch in grape.prefetch([torch.ones(1)], "cpu"):
    batch.sum()
with grape.session() as session:
    pass
assert session.report is not None
session.report.to_dict()["cell"]["plain_ms"]
"""


def test_code_that_uses_the_public_functions_passes_a_type_checker(tmp_path: Path) -> None:
    file = tmp_path / "uses.py"
    file.write_text(USES)
    command = [sys.executable, "-m", "mypy", str(file)]  # with the cache of `make lint`
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
