"""What `%grape status` says of memory, while graphs hold some and after they went."""

from __future__ import annotations

import gc
import re

import pytest
from IPython.core.interactiveshell import InteractiveShell

from grape.magics import load
from grape.render.units import nbytes
from grape.sessions import close_engine, engine

SETUP = """\
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8), torch.nn.Tanh()).eval()
sizes = [3, 7, 5, 1, 6, 2, 4]
batches = [torch.randn(size, 8) for size in sizes]
with torch.no_grad():
    expected = [net(batch) for batch in batches]
"""
CELL = "%%grape\nwith torch.no_grad():\n    found = [net(batch) for batch in batches]\nlast = found[-1]"


def status(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert shell.run_cell("%grape status").success
    return capsys.readouterr().out


def test_status_tells_what_stays_after_undo(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    load(shell)
    close_engine()
    gc.unfreeze()  # pairs of earlier tests have pools of their own, and some lie in cycles
    gc.collect()
    of_others = engine().context.backend.memory().pool_bytes
    assert shell.run_cell(SETUP).success
    for _ in range(4):
        assert shell.run_cell(CELL).success
        assert shell.run_cell("assert all(map(torch.equal, found, expected))").success
    context = engine().context
    pool_bytes = context.backend.memory().pool_bytes
    assert pool_bytes
    applied = status(shell, capsys)
    assert re.search(r"^  1 Sequential \(net\).* 7 graphs", applied, re.MULTILINE)
    assert f"memory: on the device: pool {nbytes(pool_bytes)}, placeholders " in applied and "working set" in applied
    said, found = re.split(r"^found in the last run, In\[\d+\]:$", applied, flags=re.MULTILINE)
    assert "GR201" in found and "GR201" not in said

    assert shell.run_cell("%grape undo").success
    undone = status(shell, capsys)
    placeholders = nbytes(context.store.nbytes)
    kept = f"memory: on the device: pool {nbytes(pool_bytes)}, placeholders {placeholders}, executables 0 B"
    assert f"{kept}; the pool is kept for the next graph until %grape reset" in undone
    assert ("placeholders hold results that you keep" in undone) == bool(context.store.nbytes)

    assert shell.run_cell("%grape reset").success
    assert context.backend.memory().pool_bytes <= of_others
    assert of_others or "memory" not in status(shell, capsys)
    assert shell.run_cell("assert all(map(torch.equal, found, expected))").success
