"""One rank of a process group with cells, run as a process of its own by test_rank_faults.py.

`python -m tests.integration.rank_cells SCENARIO HEAD RANK WORLD STORE` runs the scenario's cells, those of work below
HEAD, which may be empty, and prints what came of each as a line of JSON.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from traitlets.config import Config

STEPS = 60

TRAINING = """
for i in range(STEPS):
    if i == FAULT:
        fault()
    optimizer.zero_grad()
    loss = model(torch.full((4, 8), 0.1 * (i % 7) + rank)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
"""
EXCHANGE = """
for i in range(STEPS):
    y = (x * 0.5).tanh() + 0.1
    if i == FAULT:
        fault()
    dist.all_reduce(y)
    x = y * 0.25
    seen.append(x)
"""
TOGETHER = "z = torch.ones(4) * (rank + 1)\nfor _ in range(9):\n    dist.all_reduce(z)\n    z = z * 0.5 + 1"
ALONE = "z = torch.ones(4)\nfor _ in range(30):\n    z = (z * 2).tanh() + 1"
SCENARIOS: dict[str, tuple[str, str]] = {  # work in which the fault comes, and what is run behind it
    "killed": (TRAINING, ALONE),
    "slow": (TRAINING, TOGETHER),
    "raises": (TRAINING, ALONE),
    "catches": (EXCHANGE, TOGETHER),
    "interrupted": (EXCHANGE, TOGETHER),
}


def fault(scenario: str, rank: int, pids: list[int]) -> None:
    if scenario == "killed" and rank == 1:
        os.kill(os.getpid(), 9)
    if scenario == "slow" and rank == 1:
        time.sleep(1)
    if scenario == "raises" and rank == 1:
        raise ValueError("of this rank's own")
    if scenario == "catches" and rank == 1:
        with contextlib.suppress(RuntimeError):
            torch.ones(2, 3) @ torch.ones(2, 3)
    if scenario == "interrupted" and rank == 1:
        time.sleep(0.5)  # the others wait by now
        os.kill(pids[0], 2)
        time.sleep(0.5)


def main(scenario: str, head: str, rank: int, world: int, store: str) -> None:
    torch.set_num_threads(1)
    seconds = 3 if scenario == "raises" else 60
    timeout = datetime.timedelta(seconds=seconds)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timeout)
    pids: list[Any] = [None] * world
    dist.all_gather_object(pids, os.getpid())
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)))
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    shell = InteractiveShell.instance(config=config)
    shell.user_ns |= {
        "torch": torch, "dist": dist, "model": model, "rank": rank, "STEPS": STEPS, "losses": [],
        "optimizer": torch.optim.SGD(model.parameters(), 0.05), "x": torch.ones(16) * rank, "seen": [],
        "FAULT": STEPS - 1 if scenario == "interrupted" else 40, "fault": lambda: fault(scenario, rank, pids),
    }  # fmt: skip
    shell.run_cell("%load_ext grape")
    work, behind = SCENARIOS[scenario]
    for cell in (work, behind, behind):
        began = time.monotonic()
        with capture_output():
            result = shell.run_cell(f"{head}\n{cell}" if head else cell)
        error = result.error_before_exec or result.error_in_exec
        names = {name: shell.user_ns.get(name) for name in ("i", "losses", "x", "y", "z", "seen", "loss")}
        left = {name: repr(value) for name, value in names.items()}
        left["parameters"] = repr([(p, p.grad) for p in model.parameters()])
        told = {"error": type(error).__name__ if error else None, "took": time.monotonic() - began, "left": left}
        told["text"] = str(error)[:200]
        if head:
            import grape

            told["matched"] = sum(s.matched for s in grape.last.evidence.streams) if grape.last else 0
            told["verdict"] = grape.last.verdict if grape.last else None
        print(json.dumps(told), flush=True)
        if scenario == "raises" and cell is work and rank == 1:
            time.sleep(seconds + 2)  # it is still there when the others give it up
    sys.stdout.flush()
    os._exit(0)  # a group with a rank that is gone cannot be destroyed


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
