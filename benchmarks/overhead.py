"""What Grape takes from cells in which there is nothing to gain: each plain, and under ``%%grape``, in one shell.

    python benchmarks/overhead.py [--runs 7] [--device cpu|cuda] [--out FILE]

The whole time of the cell is measured, until its report is there; on a GPU a cell ends when the GPU is done. Plain runs
are half before, half behind those under Grape, for a machine gets slower and faster. Prints milliseconds: the median of
the plain runs, the first run under Grape, the median from the second one on, and that over plain.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _machine import machine, result_path, write

SETUP = """\
import numpy as np, random, torch
from torch import nn
device = torch.device({device!r})
torch.manual_seed(0)
matrix, values, small = torch.randn(300, 300), torch.randn(3000), np.arange(8.0)
def add(x):
    return x + 1
def wait():
    if device.type == 'cuda':
        torch.cuda.synchronize()
"""
CELLS = {
    "an empty cell": "pass",
    "10^6 iterations of Python": "total = 0\nfor i in range(1_000_000):\n    total += i",
    "20,000 NumPy operations": "for i in range(20_000):\n    array = small + 1",
    "3,000 reads": "total = 0.0\nfor i in range(3000):\n    total += values[i].item()",
    "200 large products": "for i in range(200):\n    product = matrix @ matrix",
    "300,000 Python calls": "for i in range(300_000):\n    add(i)",
}
SETUP_GPU = """\
large, line = torch.randn(4096, 4096, device=device), torch.randn(100_000, device=device)
wide = nn.Sequential(nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 4096)).to(device)
image, filters = torch.randn(64, 64, 112, 112, device=device), nn.Conv2d(64, 64, 3, padding=1).to(device)
optimizer = torch.optim.AdamW(wide.parameters(), fused=True)
draw = random.Random(0)
operators = (torch.sin, torch.exp, torch.tanh, torch.abs, torch.sigmoid, torch.square, torch.neg, torch.cos)
"""
BUSY_GPU = {
    "a GPU busy with 300 products": "for i in range(300):\n    product = large @ large\nwait()",
    "a GPU busy with training": (
        "for i in range(60):\n    loss = wide(large).square().mean()\n    loss.backward()\n"
        "    optimizer.step()\n    optimizer.zero_grad()\nwait()"
    ),
    "a GPU busy with convolutions": (
        "with torch.no_grad():\n    for i in range(300):\n        seen = filters(image)\nwait()"
    ),
    "20,000 operators, none twice": (
        "for i in range(5_000):\n    part = line[: draw.randrange(1, 100_000)]\n"
        "    for j in range(draw.randrange(1, 8)):\n        part = draw.choice(operators)(part)\nwait()"
    ),
    "2,000 reads of a GPU": "total = 0.0\nfor i in range(2000):\n    total += line[draw.randrange(100_000)].item()",
}


def _shell() -> Any:
    os.environ.setdefault("IPYTHONDIR", tempfile.mkdtemp())
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.display_pub = CapturingDisplayPublisher()
    shell.history_manager.enabled = False
    return shell


def _took_ms(shell: Any, source: str) -> float:
    with contextlib.redirect_stdout(io.StringIO()):
        began = time.perf_counter()
        result = shell.run_cell(source, store_history=True)
        took = (time.perf_counter() - began) * 1e3
    result.raise_error()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=result_path("overhead"))
    arguments = parser.parse_args()
    runs = arguments.runs
    cells = CELLS | (BUSY_GPU if arguments.device == "cuda" else {})
    shell = _shell()
    _took_ms(shell, SETUP.format(device=arguments.device) + (SETUP_GPU if arguments.device == "cuda" else ""))
    rows: dict[str, Any] = {}
    print(f"{'cell':<32}{'plain':>10}{'first':>10}{'later':>10}{'ratio':>8}")
    for name, source in cells.items():
        _took_ms(shell, source)
        plain = [_took_ms(shell, source) for _ in range(runs)]
        shell.run_line_magic("load_ext", "grape")
        under = [_took_ms(shell, f"%%grape\n{source}") for _ in range(runs)]
        shell.run_line_magic("unload_ext", "grape")
        plain += [_took_ms(shell, source) for _ in range(runs)]
        before, later = statistics.median(plain), statistics.median(under[1:])
        rows[name] = {"plain_ms": plain, "grape_ms": under, "ratio": later / before}
        print(f"{name:<32}{before:>10.1f}{under[0]:>10.1f}{later:>10.1f}{later / before:>8.2f}", flush=True)
        write(arguments.out, {"machine": machine(), "cells": rows})


if __name__ == "__main__":
    main()
