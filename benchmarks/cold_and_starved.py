"""What GR203 foretells of cold shapes, and GR303 of loops that starve, against what was measured.

    python benchmarks/cold_and_starved.py [--only NAME ...] [--times N] [--small] [--out FILE]

GR203: a cell that meets new lengths runs in processes of its own: plainly, twice; with what the finding advises, where
that is a switch; and under ``%%grape``, twice. Before it one other length is met, which loads libraries. What eager
code paid is the first plain run less the second; what the switch saves is the first plain run less the first one with
it. That differs from process to process: `--times` measures each cell again. The second run meets no new shape: nothing
may be said of it. GR303: five loops that wait for their `DataLoader` and five that do not, each under ``%%grape`` in a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _machine import machine, result_path, write
from programs import run_cell

BEGIN = """
import warnings
warnings.filterwarnings("ignore")
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
small, device = {small}, "{device}"
torch.manual_seed(0)
"""


@dataclass(frozen=True)
class Shapes:
    setup: str
    warm: str
    cell: str
    switch: str = ""
    """What the finding advises, where it is one line."""


SHAPES = {
    "generate": Shapes(
        setup="""
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(**(dict(n_layer=2, n_head=2, n_embd=32) if small else {}))).eval().to(device)
model = model.to(torch.float32 if small else torch.float16)
model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
prompt = torch.arange(1, 13, device=device)[None]
""",
        warm="_ = model.generate(prompt[:, :3], max_new_tokens=2, do_sample=False)\n",
        cell="tokens = model.generate(prompt, max_new_tokens=80, do_sample=False)\n",
        switch="torch.backends.cuda.enable_cudnn_sdp(False)\n",
    ),
    "conformer": Shapes(
        setup="""
from torchaudio.models import Conformer
model = Conformer(80, num_heads=4, ffn_dim=256, num_layers=2 if small else 8, depthwise_conv_kernel_size=31).eval()
model = model.to(device)
speech = torch.randn(4, 400, 80, device=device)
sizes = {size: torch.full((4,), size, device=device) for size in range(39, 400)}
def run(size):
    with torch.no_grad():
        return model(speech[:, :size], sizes[size])[0].sum()
""",
        warm="run(39).item()\n",
        cell="for size in range(40, 400, 12):\n    total = run(size)\n",
    ),
}
MODEL = """
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
deep = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(60)]).to(device)
class Made(Dataset):
    def __init__(self, rows, width, seconds):
        self.rows, self.width, self.seconds = torch.randn(rows, width), width, seconds
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, at):
        time.sleep(self.seconds)
        return self.rows[at]
class Stream(IterableDataset):
    def __iter__(self):
        for number in range(1500):
            yield torch.tensor([float(number * k % 7) for k in range(64)])
def collate(rows):
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [0.0] * (longest - len(row)) for row in rows])
rows = [[float(at % 5)] * (40 + at % 25) for at in range(2000)]
near = TensorDataset(torch.randn(16384, 64), torch.arange(16384))
fast = DataLoader(near, sampler=torch.utils.data.BatchSampler(range(16384), 2048, False), batch_size=None)
"""
STARVED = {
    "rows of a TensorDataset": "for x, y in DataLoader(near, batch_size=128):\n    out = model(x.to(device))\n",
    "items that take long": "for x in DataLoader(Made(300, 64, 1e-3), batch_size=32):\n    out = model(x.to(device))\n",
    "collating in Python": (
        "for x in DataLoader(rows, 64, collate_fn=collate):\n    out = model(x.to(device)[:, :1] * ones)\n"
    ),
    "an iterable dataset": "for x in DataLoader(Stream(), batch_size=32):\n    out = model(x.to(device))\n",
    "two workers that are too few": (
        "for x in DataLoader(Made(400, 64, 4e-3), batch_size=16, num_workers=2):\n    out = model(x.to(device))\n"
    ),
}
FED = {
    "no loader": "for at in range(200):\n    out = deep(many)\n",
    "a model that takes longer": (
        "for x in DataLoader(Made(320, 512, 0), batch_size=32):\n    for _ in range(6):\n"
        "        out = deep(x.to(device))\n        read = out.sum().item()\n"
    ),
    "batches that are there": "for x, y in fast:\n    for _ in range(4):\n        out = deep(wide)\n",
    "three batches": "for x in DataLoader(Made(96, 64, 1e-4), batch_size=32):\n    out = model(x.to(device))\n",
    "a list of batches": "for x in batches:\n    out = model(x)\n",
}
MORE = """
many = torch.randn(8 if small else 4096, 512, device=device)
wide = torch.randn(32 if small else 2048, 512, device=device)
ones, batches = torch.ones(64, device=device), [torch.randn(128, 64, device=device) for _ in range(200)]
"""


def measure(name: str, kind: str, *, small: bool, device: str) -> dict[str, Any]:
    """In a process of its own. Seconds of two runs, and what was found in each."""
    from IPython.core.interactiveshell import InteractiveShell

    from grape.magics import load

    shapes = SHAPES.get(name)
    shell = InteractiveShell.instance()
    parts = [BEGIN.format(small=small, device=device)]
    parts += [shapes.setup, shapes.switch * (kind == "switch"), shapes.warm] if shapes else [MODEL + MORE]
    cell = shapes.cell if shapes else {**STARVED, **FED}[name]
    for part in parts:
        _, _, failed = run_cell(shell, part)
        assert failed is None, failed
    if kind == "grape":
        load(shell)
        cell = "%%grape --no-widget\n" + cell
    seconds, found = [], []
    for _ in range(2):
        took, _, failed = run_cell(shell, cell)
        assert failed is None, failed
        seconds.append(took)
        found.append(_found() if kind == "grape" else [])
    return {"seconds": seconds, "found": found, "machine": machine()}


def _found() -> list[dict[str, Any]]:
    import grape

    assert grape.last is not None
    kept = [one for one in grape.last.to_dict()["findings"] if one["code"] in ("GR203", "GR303")]
    return [{"code": one["code"], "message": one["message"], **dict(one["evidence"])} for one in kept]


def of_shapes(name: str, *, small: bool) -> dict[str, Any]:
    plain, grape = (_apart(name, kind, small=small) for kind in ("plain", "grape"))
    paid = plain["seconds"][0] - plain["seconds"][1]
    first, second = ([one for one in found if one["code"] == "GR203"] for found in grape["found"])
    foretold = sum(one["in_all_ms"] for one in first) / 1e3
    row = {"name": name, "plain_s": plain["seconds"], "grape_s": grape["seconds"], "machine": plain["machine"]}
    row |= {"foretold_s": foretold, "paid_s": paid, "said": [one["message"] for one in first]}
    if SHAPES[name].switch:
        switch = _apart(name, "switch", small=small)
        row |= {"switch_s": switch["seconds"], "saved_s": plain["seconds"][0] - switch["seconds"][0]}
    return row | {"foretold_over_paid": foretold / paid, "silent_where_shapes_repeat": not second}


def of_loop(name: str, *, small: bool) -> dict[str, Any]:
    grape = _apart(name, "grape", small=small)
    said = [one["message"] for one in grape["found"][0] if one["code"] == "GR303"]
    return {"name": name, "starves": name in STARVED, "found": bool(said), "said": said, "grape_s": grape["seconds"]}


def _apart(name: str, kind: str, *, small: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "one.json"
        command = [sys.executable, __file__, "--only", name, "--kind", kind, "--out", str(out)]
        done = subprocess.run([*command, *(["--small"] if small else [])], capture_output=True, text=True, check=False)
        if not out.is_file():
            raise SystemExit(f"{name}, {kind}: {done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(out.read_text())
    return found


def main() -> None:
    names = [*SHAPES, *STARVED, *FED]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--times", type=int, default=1, help="that each cell with new lengths is measured")
    parser.add_argument("--small", action="store_true", help="small models on the CPU, which show that it runs")
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=result_path("cold_and_starved"))
    arguments = parser.parse_args()
    small = arguments.small
    if arguments.kind:
        (name,) = arguments.only
        found = measure(name, arguments.kind, small=small, device="cpu" if small else "cuda")
        arguments.out.write_text(json.dumps(found))
        sys.stdout.flush()
        os._exit(0)  # workers of loaders are not waited for
    rows: dict[str, Any] = {"machine": machine(), "shapes": [], "loops": []}
    for name in (each for each in arguments.only for _ in range(arguments.times if each in SHAPES else 1)):
        row = of_shapes(name, small=small) if name in SHAPES else of_loop(name, small=small)
        rows["shapes" if name in SHAPES else "loops"].append(row)
        print({key: value for key, value in row.items() if key != "machine"}, flush=True)
        write(arguments.out, rows)


if __name__ == "__main__":
    main()
