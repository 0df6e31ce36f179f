"""A cell that does not use the GPU gives this process no context; one that does is served from there on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from grape.options import ENGINE, REFERENCE
from tests.processes import environment_of

CELLS = """
import json, sys
import torch
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "grape")
import grape
def cell(source):
    shell.run_cell(source).raise_error()
    return grape.last.to_dict()
shell.run_cell("import torch")
cell("%%grape --no-widget\\nx = torch.randn(8, 8)\\nfor _ in range(50):\\n    x = torch.tanh(x @ x)")
untouched, plain = torch.cuda.is_initialized(), torch.cuda._lazy_init.__module__
cell("%%grape --no-widget\\nfor _ in range(50):\\n    x = torch.tanh(x @ x)")
again = torch.cuda.is_initialized()
used = '''%%grape --no-widget
net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)]).cuda()
opt = torch.optim.Adam(net.parameters())
x = torch.randn(32, 64, device="cuda")
for step in range(400):
    opt.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        loss.item()
'''
told = cell(used)
torch.manual_seed(0)
json.dump([untouched, again, plain, told["streams"][0]["matched"]], open(sys.argv[1], "w"))
"""


def test_a_cell_of_the_cpu_leaves_the_gpu_alone(tmp_path: Path) -> None:
    (tmp_path / "cells.py").write_text(CELLS)
    done = subprocess.run(
        [sys.executable, "cells.py", "found.json"],
        cwd=tmp_path,
        env={**environment_of(), ENGINE: "auto", REFERENCE: ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    untouched, again, plain, matched = json.loads((tmp_path / "found.json").read_text())
    assert not untouched and not again and plain == "torch.cuda"
    assert matched > 100
