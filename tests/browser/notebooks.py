"""Notebooks for the front ends, and what the tests do with them there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat

KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}

MODEL = """\
%load_ext grape
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)).eval()
def step(x):
    return net(x) * 0.5 + x
"""

LOOP = """\
%%grape
with torch.no_grad():
    x = torch.ones(2, 8)
    for i in range(60):
        x = step(x)
"""

SAMPLE = """\
from grape.errors import UsageError
from grape.render import build_report
from grape.render.timeline.view import build_view
from grape.widgets.report import Actions, Answer, ReportWidget
from tests.unit.sample_evidence import sample
applied = []
def apply(fix):
    applied.append(fix)
    return Answer(message=f"applied {fix}", applied=True)
def undo(fix):
    applied.remove(fix)
    return Answer(message=f"took {fix} back", applied=False)
def undo_region(name):
    raise UsageError(f"{name} cannot be undone here")
report = build_report(*sample())
view = build_view(report)
actions = Actions(apply=apply, undo=undo, undo_region=undo_region, trace=lambda: '{"traceEvents": []}')
widget = ReportWidget(view.data, view.blob, actions)
widget
"""

EARLY = """\
early = build_view(report, limit=0)
widget = ReportWidget(early.data, early.blob, actions)
widget
"""

FIXABLE = """\
%%grape
with torch.no_grad():
    kept = []
    for i in range(12):
        kept.append(net(torch.ones(2, 8)).sum().item())
"""

REWRITTEN = (
    FIXABLE.replace(".item())", ".detach().clone())").rstrip() + "\n    kept[:] = [value.item() for value in kept]"
)

STATUS = "print('applied:', applied)"


def write(folder: Path, name: str, *cells: str, text: str = "") -> str:
    """A notebook of such cells, below a Markdown cell with `text` if there is any."""
    above = [nbformat.v4.new_markdown_cell(text)] if text else []
    codes = [nbformat.v4.new_code_cell(cell) for cell in cells]
    notebook = nbformat.v4.new_notebook(cells=[*above, *codes], metadata=KERNEL)
    nbformat.write(notebook, folder / name)
    return name


def wait_for_notebook(page: Any) -> None:
    """Until the notebook is there and its kernel is idle."""
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.wait_for_function("!document.querySelector('.jp-Spinner')")
    page.wait_for_function(
        """() => { const app = window.jupyterapp; const panel = app && app.shell.currentWidget;
        const session = panel && panel.sessionContext;
        return session && session.session && session.session.kernel && session.session.kernel.status === 'idle'; }"""
    )


def command(page: Any, name: str) -> None:
    page.evaluate("name => window.jupyterapp.commands.execute(name)", name)


def run_all(page: Any) -> None:
    """Run all cells, and wait until the last one has its number."""
    command(page, "notebook:run-all-cells")
    page.wait_for_function(
        """() => { const cells = window.jupyterapp.shell.currentWidget.content.widgets;
        return cells.every(cell => cell.model.type !== 'code' || !cell.model.sharedModel.getSource().trim()
            || cell.model.executionCount !== null && cell.model.executionState !== 'running'); }""",
        timeout=60_000,
    )


def source_of(page: Any, number: int) -> str:
    """What stands in the cell with that index: in the notebook's own model, which is what is run and saved."""
    script = "number => window.jupyterapp.shell.currentWidget.content.widgets[number].model.sharedModel.getSource()"
    return str(page.evaluate(script, number))


def edit(page: Any, number: int, before: str) -> None:
    """Write something in front of what stands in a cell."""
    script = """([number, before]) => {
        const model = window.jupyterapp.shell.currentWidget.content.widgets[number].model.sharedModel;
        model.setSource(before + model.getSource());
    }"""
    page.evaluate(script, [number, before])


def run_code(page: Any, code: str) -> str:
    """Run `code` in the notebook's kernel, without a cell; what it printed."""
    script = """async code => {
        const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
        const future = kernel.requestExecute({ code, store_history: false });
        let said = "";
        future.onIOPub = message => {
            if (message.header.msg_type === "stream") said += message.content.text;
            if (message.header.msg_type === "error") said += message.content.evalue;
        };
        await future.done;
        return said.trim();
    }"""
    return str(page.evaluate(script, code))
