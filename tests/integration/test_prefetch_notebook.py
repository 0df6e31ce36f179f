"""GR302's fix in a notebook on disk: `grape apply` writes it, both notebooks run, the results are the same."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from grape.cli.entry import main
from grape.rewrite import Rewritten
from grape.rewrite.registry import fix
from tests.integration.notebook_files import notebook_file
from tests.unit.rewrite_cases import finding

pytestmark = pytest.mark.usefixtures("forked_kernels")

SETUP = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(50, 4), torch.randint(0, 3, (50,)))
"""
TRAIN = """\
loader = DataLoader(data, batch_size=8, shuffle=True)
for epoch in range(2):
    for step, (x, y) in enumerate(loader):
        x = x.to(device)
        y = y.to(device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if step == 4:
            break
"""
RESULT = """\
weights = [p.double().sum().item().hex() for p in model.parameters()]
print(weights, loss.item().hex(), torch.rand(1).item().hex(), x.device, len(y))
"""


@pytest.mark.slow
def test_prefetched_batches_in_a_notebook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = notebook_file(tmp_path, *(source.rstrip() for source in (SETUP, TRAIN, RESULT)), name="train.ipynb")
    out, report = tmp_path / "train.grape.ipynb", tmp_path / "report.json"
    found = []
    for line in (4, 5):  # one rewrite removes both
        one = finding("GR302", line, file="In[2]")
        made = fix(TRAIN, one)
        assert isinstance(made, Rewritten), made
        found.append({**one.to_dict(), "fix": {"id": 1, "diff": made.diff, "verified": True}})
    report.write_text(json.dumps({"version": 1, "findings": found}))
    assert main(["apply", str(path), "--report", str(report)]) == 0, capsys.readouterr()
    rewritten = nbformat.read(out, as_version=4)
    nbformat.validate(rewritten)
    assert "enumerate(grape.prefetch(loader, device)):" in rewritten.cells[1].source
    assert "pin_memory" in rewritten.cells[1].source and rewritten.cells[1].source.count("import grape") == 1
    printed = []
    for notebook in (nbformat.read(path, as_version=4), rewritten):
        NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
        printed.append("".join(output.text for output in notebook.cells[-1].outputs))
    assert printed[0] == printed[1]
