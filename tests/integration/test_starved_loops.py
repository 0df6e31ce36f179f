"""GR303 as a person meets it: the finding, the verified rewrite, and nothing left of the watch."""

from __future__ import annotations

import pytest
from torch.utils.data.dataloader import _BaseDataLoaderIter

import grape
from tests.integration.notebook import Notebook

ORIGINAL = _BaseDataLoaderIter.__next__

SETUP = """
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.manual_seed(0)
w, total = torch.eye(8), torch.zeros(())
data = TensorDataset(torch.randn(16384, 8), torch.arange(16384))
"""
LOOP = """%%grape
loader = DataLoader(data, batch_size=256, shuffle=True)
for step, (x, y) in enumerate(loader):
    total += (x @ w).sum()
"""


@pytest.fixture
def loops(notebook: Notebook) -> Notebook:
    notebook.run(SETUP).raise_error()
    return notebook


def test_a_loop_over_rows_has_a_verified_rewrite(loops: Notebook) -> None:
    report = loops.under_grape(LOOP)
    assert _BaseDataLoaderIter.__next__ is ORIGINAL
    (finding,) = (one for one in report["findings"] if one["code"] == "GR303")
    assert (finding["line"], finding["severity"], finding["fixable"]) == (3, "costly", True)
    assert "made item by item in this process (`num_workers=0`)" in finding["message"]
    assert grape.last is not None
    (fixed,) = (one for one in grape.last.with_fixes().findings if one.code == "GR303")
    assert fixed.fix is not None and fixed.fix.verified, fixed.fix
    assert "sampler=torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), 256, False)" in fixed.fix.diff


def test_with_the_rewrite_the_loop_starves_no_more(loops: Notebook) -> None:
    rewritten = LOOP.replace(
        "batch_size=256, shuffle=True",
        "sampler=torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), 256, False), batch_size=None",
    )
    loops.run("torch.manual_seed(1)")
    before = loops.under_grape(LOOP)
    kept, drawn = loops["total"].clone(), loops["torch"].rand(1)
    loops.run("total.zero_()\ntorch.manual_seed(1)")
    after = loops.under_grape(rewritten)
    assert loops["total"].equal(kept) and loops["torch"].rand(1).equal(drawn)
    waits = [
        next((one["evidence"]["wait_ms"] for one in r["findings"] if one["code"] == "GR303"), 0.0)
        for r in (before, after)
    ]
    assert waits[1] < waits[0], "rows are taken at once"


@pytest.mark.parametrize("ends", ["break", "raise ValueError('gone')", "raise KeyboardInterrupt"])
def test_however_the_cell_ends_nothing_of_the_watch_stays(loops: Notebook, ends: str) -> None:
    loops.run(LOOP + f"    if step == 2:\n        {ends}\n")
    assert _BaseDataLoaderIter.__next__ is ORIGINAL
    assert loops["step"] == 2


def test_what_a_dataset_raises_looks_as_it_would_plainly(loops: Notebook) -> None:
    loops.run("class Gone(Dataset):\n    def __len__(self): return 9\n    def __getitem__(self, i): return {}[i]\n")
    tracebacks = []
    for first in ("", "%%grape\n"):
        loops.run(f"{first}for x in DataLoader(Gone()):\n    pass\n")
        tracebacks.append(loops.said)
    assert all("KeyError" in shown for shown in tracebacks)
    assert "loaders.py" not in tracebacks[1] and _BaseDataLoaderIter.__next__ is ORIGINAL
