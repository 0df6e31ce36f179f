"""Processes that a cell or a script starts: what they compute, what they print and raise, and the one report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch.distributed

from tests.processes import environment_of
from tests.property.stream_programs import needs_compiler

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here"),
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="torch without gloo"
    ),
]

TRAIN = """\
import os, signal, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn
def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
def train(rank, name, how=""):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{name}.store", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    if rank == 0 and how == "raises":
        raise ValueError("no more data")
    if rank == 0 and how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    torch.save([p.detach() for p in model.module.parameters()], f"{name}.{rank}")
    dist.destroy_process_group()
"""
CELLS = f"""
import json, os, re, sys
import torch
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "grape")

def cell(source):
    return shell.run_cell(source).error_in_exec

cell({TRAIN!r})
asked = []
for name in ("is_available", "device_count", "current_device", "_lazy_init"):
    def ask(*args, _was=getattr(torch.cuda, name), _pid=os.getpid(), _name=name):
        if os.getpid() == _pid:
            asked.append(_name)
        return _was(*args)
    setattr(torch.cuda, name, ask)

magic, start = sys.argv[1], "mp.start_processes(train, args=(NAME, HOW), nprocs=2, start_method='fork')"
def launch(first, name, how=""):
    error = cell(f"{{first}}\\nNAME, HOW = {{os.path.abspath(name)!r}}, {{how!r}}\\n{{start}}")
    # a child's frames, which name the cell, and the process's number, which is another each time
    other = r"ipython-input-\\S+|exit code \\S+|pid \\S+"
    return None if error is None else re.sub(other, "", f"{{error!r}} {{error}}")

import grape
errors = [launch("", "plain"), launch(magic, "alone")]
told = grape.last.to_dict()
untouched = list(asked)
errors += [launch("for _ in range(60): y = make()(torch.ones(2, 8)).sum()", "beside")]
raised = [launch("", "raised", "raises"), launch(magic, "raised_too", "raises")]
raising = grape.last.to_dict()
died = [launch("", "died", "dies"), launch(magic, "died_too", "dies")]
plain = torch.load("plain.0")
same = [
    all(map(torch.equal, plain, torch.load(f"{{name}}.{{rank}}")))
    for name in ("plain", "alone", "beside") for rank in (0, 1)
]
Path = __import__("pathlib").Path
Path("found.json").write_text(json.dumps([errors, told, untouched, raised, raising, died, same]))
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = environment_of() | {"GRAPE_REFERENCE": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_children_of_a_cell_are_served_and_end_as_without_grape(tmp_path: Path) -> None:
    """In the manner of `accelerate.notebook_launcher`: forked in a cell, with functions of the notebook."""
    (tmp_path / "cells.py").write_text(CELLS)
    done = run(tmp_path, "cells.py", "%%grape --engine streams")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    errors, told, untouched, raised, raising, died, same = json.loads((tmp_path / "found.json").read_text())
    assert errors == [None] * 3 and all(same), same
    assert untouched == [], "a process that has asked for CUDA cannot fork others that use it"
    ranks = told["cell"]["ranks"]
    assert [one["rank"] for one in ranks["shown"]] == [0, 1] and ranks["missing"] == []
    assert any(note.startswith("2 processes were started; this is what rank 0 did") for note in told["cell"]["notes"])
    assert all(one["matched"] > 300 and one["collectives"] >= 40 for one in ranks["shown"])
    assert ranks["apart"] is None and all(one["waits_ms"] is not None for one in ranks["shown"])
    assert raised[0] == raised[1] and "ValueError: no more data" in raised[0] and "grape" not in raised[0]
    assert raising["verdict"].startswith("stopped by ProcessRaisedException")
    assert died[0] == died[1] and "SIGKILL" in died[0]


def test_a_script_that_spawns_has_one_report(tmp_path: Path) -> None:
    main = 'if __name__ == "__main__":\n    mp.spawn(train, args=(os.path.abspath(sys.argv[1]),), nprocs=2)\n'
    (tmp_path / "train.py").write_text(TRAIN + main)
    plain = run(tmp_path, "train.py", "plain")
    done = run(tmp_path, "-m", "grape", "run", "--json", "report.json", "train.py", "grape")
    assert (plain.returncode, done.returncode) == (0, 0), plain.stderr + done.stderr
    for rank in (0, 1):
        one, other = (torch.load(tmp_path / f"{name}.{rank}") for name in ("plain", "grape"))
        assert all(map(torch.equal, one, other))
    assert done.stderr.count("Grape: train.py") == 1 and "waited for others" in done.stderr
    told = json.loads((tmp_path / "report.json").read_text())
    assert [one["rank"] for one in told["cell"]["ranks"]["shown"]] == [0, 1]
    assert not [one for one in told["findings"] if one["code"] in ("GR404", "GR405")], "regions stand aside"


def test_what_an_elastic_launch_returns(tmp_path: Path) -> None:
    """What recent versions of `notebook_launcher` call."""
    main = """
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch
        def work(name):
            train(int(os.environ["RANK"]), name)
            return os.environ["RANK"], torch.rand(1).item()
        if __name__ == "__main__":
            config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, run_id="none", start_method="fork",
                                  rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0)
            print(sorted(elastic_launch(config, work)(os.path.abspath(sys.argv[1])).items()))  # they end in any order
    """
    (tmp_path / "train.py").write_text(TRAIN + textwrap.dedent(main))
    plain = run(tmp_path, "train.py", "plain")
    done = run(tmp_path, "-m", "grape", "run", "--engine", "streams", "train.py", "grape")
    assert (plain.returncode, done.returncode) == (0, 0), plain.stderr + done.stderr
    assert done.stdout == plain.stdout and "'1'" in done.stdout
    assert "this is what rank 0 did" in done.stderr and "waited for others" in done.stderr
