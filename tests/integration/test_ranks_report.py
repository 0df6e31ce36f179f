"""Several ranks under `grape run`: one report, and the numbers of a plain run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch.distributed

from tests.processes import environment_of, ran
from tests.property.stream_programs import needs_compiler

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="torch without gloo"
    ),
]

SCRIPT = """\
import random, sys, time
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, how = dist.get_rank(), sys.argv[1]
random.seed(0)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    if how == "late" and rank == 1:
        time.sleep(0.02)
    loss = model(torch.randn(4, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if how == "raises" and rank == 1:
    raise ValueError("no more data")
ends = [round(loss.item(), 12), random.random(), torch.rand(1).item()]
print(f"rank {rank} ends with {ends}\\n", end="", flush=True)
dist.destroy_process_group()
"""


def torchrun(folder: Path, *arguments: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    environment = environment_of() | {"GRAPE_REFERENCE": "1", "CUDA_VISIBLE_DEVICES": ""}
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    for _ in range(4):
        done = ran(*launcher, *arguments, cwd=folder, environment=environment, timeout=240)
        if "terminate called without an active exception" not in done.stderr:
            break  # else torch with gloo aborted at its exit, as it does now and then, without Grape too
    return done


def ends(done: subprocess.CompletedProcess[str]) -> list[str]:
    return sorted(line for line in done.stdout.splitlines() if "ends with" in line)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_rank_0_reports_for_all_and_names_the_straggler(script: Path) -> None:
    plain = torchrun(script, "train.py", "late")
    done = torchrun(script, "-m", "grape", "run", "--json", "report.json", "train.py", "late")
    assert (plain.returncode, done.returncode) == (0, 0), plain.stderr + done.stderr
    assert ends(done) == ends(plain) and len(ends(done)) == 2, "same losses, same random numbers afterwards"
    assert done.stderr.count("Grape: train.py") == 1
    assert "waited for others" in done.stderr and "imbalance" in done.stderr
    report = json.loads((script / "report.json").read_text())
    ranks = report["cell"]["ranks"]
    assert (ranks["rank"], ranks["size"], ranks["missing"], ranks["apart"]) == (0, 2, [], None)
    assert [one["rank"] for one in ranks["shown"]] == [0, 1]
    assert all(one["matched"] > 0 and one["collectives"] >= 60 for one in ranks["shown"])
    waits = [one["waits_ms"] for one in ranks["shown"]]
    assert waits[0] > 500 and waits[1] < waits[0] / 2  # which waits for its own start, and for the cores of others
    (finding,) = (one for one in report["findings"] if one["code"] == "GR601")
    assert finding["message"].startswith("the other rank waits for rank 1 at `allreduce`: it comes ")
    assert (finding["file"], finding["line"]) == ("train.py", SCRIPT.splitlines().index("    loss.backward()") + 1)
    assert not [one for one in report["findings"] if one["code"] == "GR102"], "`rank == 1` is no tensor's value"


def test_a_rank_that_raises_reports_itself_and_each_may_have_a_file(script: Path) -> None:
    done = torchrun(script, "-m", "grape", "run", "--json", "report-{rank}.json", "train.py", "raises")
    assert done.returncode != 0
    assert "ValueError: no more data" in done.stderr and "stopped by ValueError" in done.stderr
    other = json.loads((script / "report-1.json").read_text())["cell"]
    assert other["error"] == "ValueError: no more data"
    assert (other["ranks"]["rank"], other["ranks"]["shown"]) == (1, [])
