"""``%grape whatif``, in cells that run plainly, under Grape, and behind those that streams serve."""

from __future__ import annotations

import pytest

from tests.integration.notebook import Notebook
from tests.unit.test_what_if import without_compiler

SETUP = "import torch\nfrom torch import nn\nnet = nn.Linear(4, 4).eval()\nx = torch.ones(2, 4)\ncalls = []"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiler(monkeypatch)


def test_the_table_of_a_call(notebook: Notebook) -> None:
    notebook.run("%grape whatif net(x)").raise_error()
    assert "net(...), forward without gradients, on the CPU" in notebook.said and "as written" in notebook.said
    notebook.run("%grape whatif net(input=x[:1] + 1)").raise_error()
    assert "bfloat16 (autocast)" in notebook.said


def test_what_is_no_call_of_a_module(notebook: Notebook) -> None:
    for line, said in {
        "": "%grape whatif needs an argument: %grape whatif CALL",
        "nett(x)": "cannot evaluate 'nett(x)': name 'nett' is not defined",
        "net": "needs a call of a module, as in %grape whatif model(x), not 'net'",
        "net(": "cannot read 'net('",
        "net(await x)": "cannot",
        "len('ab')": "measures the call of an nn.Module, not of builtin_function_or_method",
    }.items():
        notebook.run(f"%grape whatif {line}")
        assert said in notebook.said, line


def test_a_cell_under_grape_is_refused(notebook: Notebook) -> None:
    assert notebook.run("%%grape\ny = net(x)\n%grape whatif net(x)").error_in_exec is not None
    assert "this cell runs under Grape; write %grape whatif in a cell of its own" in notebook.said
    assert notebook["y"].shape == (2, 4)


def test_a_plain_cell_that_streams_serve_goes_on_being_served(notebook: Notebook) -> None:
    loop = "for _ in range(40):\n    calls.append(float((x * 2 + 1).sum()))\n"
    notebook.run(f"%%grape --engine streams\n{loop}").raise_error()
    notebook.run(f"{loop}%grape whatif net(x)\n{loop}").raise_error()
    assert "as written" in notebook.said
    assert notebook["calls"] == [24.0] * 120
