"""What torch's compiler makes of modules does not depend on cells that Grape looks at: each is compiled once."""

from __future__ import annotations

import types
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo.mutation_guard
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from grape.magics import load
from grape.runtime.dispatch.candidates import tell_plain_call
from tests.processes import lines_of_an_interpreter

torch._dynamo.mutation_guard.install_generation_tagging_init()  # the first compilation does it, for good

SETUP = """\
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
torch._dynamo.reset()
torch.manual_seed(0)
{net}
counter, x = CompileCounter(), torch.randn(4, 8)
compiled = torch.compile(lambda x: net(x).sigmoid(), backend=counter)
with torch.no_grad():
    {earlier}
"""
NETS = {
    "plain": "net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())",
    "hooked": "net = nn.Linear(8, 8)\nnet.register_forward_hook(lambda module, inputs, output: output * 2)",
    "with a call of its own": """\
class Net(nn.Linear):
    def __call__(self, x):
        return super().__call__(x) * 2
net = nn.Sequential(Net(8, 8))
""",
}
CELL = "with torch.no_grad():\n    for _ in range(20):\n        x = compiled(x) * 2 + net(x)\n"


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("earlier", ["pass", "compiled(x)"], ids=["in the cell", "before it"])
@pytest.mark.parametrize("name", NETS)
def test_a_module_is_compiled_once(shell: InteractiveShell, name: str, earlier: str) -> None:
    load(shell)
    results = []
    for magic in ("", "%%grape --no-widget --engine regions\n", "%%grape --no-widget\n"):
        with capture_output():
            assert shell.run_cell(SETUP.format(net=NETS[name], earlier=earlier)).success
            for _ in range(3):
                assert shell.run_cell(magic + CELL).success
        assert shell.user_ns["counter"].frame_count == 1, magic
        results.append(shell.user_ns["x"])
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


IMPORTED_IN_A_CELL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
import torch
from grape.magics import load
shell = InteractiveShell.instance()
load(shell)
shell.run_cell("import torch\\nnet, x = torch.nn.Linear(2, 2), torch.ones(1, 2)")
assert "torch._dynamo" not in sys.modules
shell.run_cell(
    "%%grape --no-widget --engine regions\\n"
    "for _ in range(3):\\n    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\\n    net(x)"
)
import torch._dynamo.utils
print("torch's" if torch._dynamo.utils.unpatched_nn_module_call is torch.nn.Module._wrapped_call_impl else "Grape's")
"""


def test_a_compiler_that_is_imported_in_a_cell_knows_how_torch_calls_modules() -> None:
    """The first optimizer imports it."""
    assert lines_of_an_interpreter(IMPORTED_IN_A_CELL)[-1] == "torch's"


def test_only_the_patch_is_taken_from_a_compiler_that_was_imported() -> None:
    module, patch, others = types.ModuleType("utils"), lambda: 1, lambda: 2
    for seen, is_left in ((patch, torch.nn.Module.__call__), (others, others)):
        module.unpatched_nn_module_call = seen  # type: ignore[attr-defined]
        tell_plain_call(patch, torch.nn.Module.__call__, module)
        assert module.unpatched_nn_module_call is is_left
