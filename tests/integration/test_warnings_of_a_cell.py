"""A cell under `%%grape` shows the warnings that it shows without it, as often."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch._dynamo  # noqa: F401  an optimizer imports it, and it wraps functions of torch for good
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from grape.magics import load
from grape.quiet import without_warnings
from grape.sessions import process

SETUP = """\
import re, warnings
import torch
net = torch.nn.Linear(8, 8).eval()
"""

LOOP = """\
with torch.no_grad():
    x = torch.randn(2, 8)
    for i in range(40):
        x = torch.tanh(net(x)) * 0.5
        {line}
"""


def shown(shell: InteractiveShell, setup: str, cell: str) -> list[tuple[str, int]]:
    """The warnings of a cell, each as often as it is shown: text and line."""
    with capture_output():
        assert shell.run_cell(SETUP + setup).success
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            assert shell.run_cell(cell).success
    return [(str(warning.message), warning.lineno) for warning in caught]


CELLS = {
    "in the cell": ("", LOOP.format(line="warnings.warn('careful')\n        print(i)")),
    "in a function": ("def old(x):\n    warnings.warn('careful')\n    return x\n", LOOP.format(line="y = old(x) + 1")),
    "of the syntax": ("", LOOP.format(line=r"found = re.match('\d', 'a')") + "total = x.sum().item()\n"),
    "of a function's syntax": (
        "def f(x):\n    for _ in range(8):\n        x = net(x) * 0.5\n"
        "        if re.match('\\d', 'a'):\n            break\n    return x\n",
        LOOP.format(line="x = f(x)") + "total = x.sum().item()\n",
    ),
}


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("options", ["", " --rewrite"])
def test_no_warning_is_shown_again(shell: InteractiveShell, name: str, options: str) -> None:
    load(shell)
    setup, cell = CELLS[name]
    plain = shown(shell, setup, "# a line in the place of the magic\n" + cell)
    assert plain or name == "of a function's syntax"
    assert [shown(shell, setup, f"%%grape --no-widget{options}\n" + cell) for _ in range(2)] == [plain, plain]


LIBRARY = """\
import sys, sysconfig, types
code = '''
import warnings
import torch
class Old(torch.nn.Linear):
    def forward(self, x):
        warnings.warn("Old is deprecated", FutureWarning, stacklevel=4)
        return super().forward(x)
class Old312(torch.nn.Linear):
    def forward(self, x):
        warnings.warn("Old is deprecated", FutureWarning, skip_file_prefixes=(torch.__path__[0], ROOT))
        return super().forward(x)
def helper(x):
    warnings.warn("helper is deprecated", FutureWarning, stacklevel=2)
    return x * 2
'''
old = types.ModuleType("old")
old.ROOT = sysconfig.get_paths()["purelib"]
exec(compile(code, old.ROOT + "/old.py", "exec"), vars(old))
"""
STEPS = """\
for x in xs:
    optimizer.zero_grad()
    loss = {loss}.square().mean()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    for x in xs:
        y = net(x)
"""
LEVELS = {
    "a module of a library": ("net = old.Old(8, 8)", "net(x)"),
    "a function of a library": ("net = old.Old(8, 8)", "old.helper(net(x))"),
    "a hook of torch in a backward pass": (
        "net = torch.nn.Linear(8, 8)\nnet.register_full_backward_hook(lambda *given: None)",
        "net(x)",
    ),
}
if sys.version_info >= (3, 12):
    LEVELS["files to be skipped"] = ("net = old.Old312(8, 8)", "net(x)")


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("engine", ["regions", "streams"])
def test_a_warning_names_the_line_that_its_level_says(shell: InteractiveShell, name: str, engine: str) -> None:
    """Grape's frames lie between: they are not counted, so nothing is shown a second time for another place."""
    load(shell)
    made, loss = LEVELS[name]
    setup = f"{LIBRARY}{made}\nxs = torch.randn(20, 2, 8)\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
    cell = STEPS.format(loss=loss)
    plain, warn = shown(shell, setup, "# a line in the place of the magic\n" + cell), warnings.warn
    assert plain and {line for _, line in plain} <= {4, 5, 9}
    assert [shown(shell, setup, f"%%grape --no-widget --engine {engine}\n" + cell) for _ in range(2)] == [plain, plain]
    shell.run_line_magic("grape", "undo")
    assert warnings.warn is warn


BLOCKS = ["torch.inference_mode(False)", "own_mode"]


@pytest.mark.parametrize("block", BLOCKS)
def test_levels_count_after_looking_ended_in_a_block(shell: InteractiveShell, block: str) -> None:
    """The tracer cannot leave the stack of modes there: it stands between a warning and its line to the block's end."""
    load(shell)
    setup = """\
from torch.utils._python_dispatch import TorchDispatchMode
class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
own_mode = Mode()
net.register_full_backward_hook(lambda *given: None)
xs = torch.randn(8, 2, 8)
"""
    cell = f"""\
with {block}:
    for i, x in enumerate(xs):
        if i == 3:
            aside()
        net(x).sum().backward()
"""
    shell.user_ns["aside"] = lambda: None
    plain, warn = shown(shell, setup, "# a line in the place of the magic\n" + cell), warnings.warn
    assert [line for _, line in plain] == [6]
    shell.user_ns["aside"] = lambda: process.engine().stand_aside()
    assert shown(shell, setup, "%%grape --no-widget --engine regions\n" + cell) == plain
    assert warnings.warn is warn


CAUGHT = """\
import os, time, traceback
caught = []
def note(error):
    frames = traceback.extract_tb(error.__traceback__)
    caught.append([(frame.name, os.path.basename(frame.filename)) for frame in frames])
class Warns(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        try:
            torch.nn.functional.mse_loss(torch.ones(2), torch.ones(2, 1))
        except UserWarning as error:
            note(error)
        return y
class Sleeps(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        try:
            time.sleep(-1)
        except ValueError as error:
            note(error)
        return y
"""


@pytest.mark.parametrize("kind, last", [("Warns", "mse_loss"), ("Sleeps", "forward")])
def test_an_error_that_the_code_catches_shows_no_frame_of_grapes(shell: InteractiveShell, kind: str, last: str) -> None:
    """Of the functions that stand for Python's while a cell is looked at: a filter makes errors of warnings."""
    load(shell)
    setup = f"{SETUP}{CAUGHT}net = {kind}(8, 8)\n"
    filtered = "with warnings.catch_warnings():\n    warnings.simplefilter('error')\n"
    cell = f"{filtered}    for _ in range(12):\n        y = net(x)\n"
    with capture_output():
        shell.run_cell(f"{setup}x = torch.randn(2, 8)\n").raise_error()
        shell.run_cell(f"%%grape --no-widget --engine regions\n{cell}").raise_error()
    caught = shell.user_ns["caught"]
    assert len(caught) == 12 and {frames[-1][0] for frames in caught} == {last}
    assert all(frames == caught[-1] for frames in caught)


@pytest.mark.filterwarnings("default")
def test_quiet_work_lets_python_remember_what_it_has_shown(recwarn: pytest.WarningsRecorder) -> None:
    filters = list(warnings.filters)
    for _ in range(2):
        warnings.warn("mine", stacklevel=1)
        with without_warnings():
            warnings.warn("not shown", stacklevel=1)
            compile(r"'\d'", "<cell>", "exec")
    assert [str(warning.message) for warning in recwarn] == ["mine"]
    assert warnings.filters == filters
