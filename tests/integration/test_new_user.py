"""What people write in notebooks, run plainly and under `%%grape`: same results, nothing left, true messages.

Every scenario is a setup cell and a cell that runs six times: twice under ``%%grape``, plainly while graphs are
applied, plainly after ``%grape undo``, under ``%%grape`` again, and plainly after ``%grape reset``. After each the
results, the exception, the printed text, the names with all tensors bit for bit, and the random streams must be those
of the plain twin (A1).
"""

from __future__ import annotations

import random
import re
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
import torch._dynamo.mutation_guard
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import grape
from grape.magics import load
from tests.integration.notebook import Notebook

torch._dynamo.mutation_guard.install_generation_tagging_init()  # the first compilation does it, for good

SETUP = """\
import copy, functools, inspect, io, pickle, random, threading, time
import numpy as np
import torch
torch.manual_seed(0); random.seed(0); np.random.seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.drop = torch.nn.Dropout(0.1)
    def forward(self, x):
        if x.shape[0] > 4:
            raise ValueError("too large")
        return torch.tanh(self.b(self.drop(torch.relu(self.a(x)))))
net = Net().eval()
"""

STEP = "def f(x):\n    return net(x) * 0.5 + x\n"
LOOP = "with torch.no_grad():\n    x = torch.randn(2, 8)\n    for i in range(20):\n        x = f(x)\n"


@dataclass(frozen=True)
class Scenario:
    """`replayed` are the names of the regions that replay in the first run, `codes` the findings' codes, each run;
    `may` are those that a run may have besides."""

    setup: str
    cell: str
    replayed: set[str] = field(default_factory=set)
    codes: set[str] = field(default_factory=set)
    may: set[str] = field(default_factory=set)


F, NET, BODY = {"f"}, {"Net (net)"}, {"loop at line 4"}

SCENARIOS = {
    "function of the same cell": Scenario("", STEP + LOOP + "x.sum().item()", F),
    "function of an earlier cell": Scenario(STEP, LOOP, F),
    "item after each step": Scenario(
        STEP, "total = 0\n" + LOOP + "        total += x.sum().item()\ntotal", F, {"GR101"}
    ),
    "print of a tensor after each step": Scenario(STEP, LOOP + "        print(x.mean())\n", F),
    "item inside": Scenario(
        "def f(x):\n    y = net(x) * 0.5 + x\n    seen.append(y.sum().item())\n    return y\nseen = []\n",
        LOOP + "len(seen)",
        NET,
        {"GR101", "GR404"},
    ),
    "print inside": Scenario(
        "def f(x):\n    y = net(x) * 0.5 + x\n    print('step')\n    return y\n", LOOP, NET, {"GR404"}
    ),
    "progress on one line": Scenario(STEP, LOOP + "        print(f'\\r{i + 1}/20', end='')\n", F),
    "training": Scenario(
        "opt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "def step(x):\n    opt.zero_grad()\n    loss = (net(x) - 1).square().mean()\n"
        "    loss.backward()\n    opt.step()\n"
        "    return loss.detach()\n",
        "net.train()\nfor i in range(15):\n    loss = step(torch.randn(4, 8))\nnet.eval()\nloss.item()",
        {"loop at line 3"},
        may={"GR405"},  # of the model alone, which the first run meets before the loop's body
    ),
    "train and eval in turn": Scenario(
        "", LOOP.replace("x = f(x)", "net.train(i % 3 == 0); x = net(x)").replace("20", "40"), NET
    ),
    "two models": Scenario("other = Net().eval()\n", LOOP.replace("f(x)", "other(net(x) + 1)"), BODY),
    "model made and deleted": Scenario(
        "", "m = Net().eval()\n" + LOOP.replace("f(x)", "m(x)") + "del m\n", {"Net (m)"}
    ),
    "no tensors": Scenario("def double(i):\n    return i * 2\n", "sum(double(i) for i in range(100))"),
    "numpy inside": Scenario(
        "def f(x):\n    return net(x) * 0.5 + x + torch.from_numpy(np.ones(8, dtype=np.float32))\n", LOOP, F
    ),
    "random from numpy": Scenario("def f(x):\n    return net(x) * float(np.random.rand())\n", LOOP, NET, {"GR404"}),
    "random from Python": Scenario("def f(x):\n    return net(x) * random.random()\n", LOOP, NET, {"GR404"}),
    "random that decides nothing": Scenario(
        "def f(x):\n    y = net(x) * 0.5 + x\n    return y + 1 if random.random() > 2 else y\n", LOOP, NET, {"GR404"}
    ),
    "a list that grows": Scenario(
        "kept = []\ndef f(x):\n    y = net(x) * 0.5 + x\n    kept.append(y)\n    return y\n",
        LOOP + "len(kept)",
        NET,
        {"GR404"},
    ),
    "a dict that counts": Scenario(
        "n = {'calls': 0}\ndef f(x):\n    n['calls'] += 1\n    return net(x) * 0.5 + x\n", LOOP + "n", NET, {"GR404"}
    ),
    "a global that counts": Scenario(
        "n = 0\ndef f(x):\n    global n\n    n += 1\n    return net(x) * 0.5 + x\n", LOOP + "n", NET, {"GR404"}
    ),
    "an attribute of the function": Scenario(
        "def f(x):\n    f.n = getattr(f, 'n', 0) + 1\n    return net(x) * 0.5 + x\n", LOOP + "f.n", NET
    ),  # what mentions itself may call itself, and is never taken over
    "result is None": Scenario(
        "total = torch.zeros(2, 8)\ndef f(x):\n    total.add_(net(x) * 0.5 + x)\n",
        LOOP.replace("x = f(x)", "r = f(x)"),
        F,
    ),
    "result is a generator": Scenario(
        "def f(x):\n    y = net(x) * 0.5 + x\n    return (row for row in y)\n",
        LOOP.replace("f(x)", "torch.stack(list(f(x)))"),
        BODY,
    ),
    "keyword-only and default arguments": Scenario(
        "def f(x, *, k=2.0, m=None, **more):\n    return net(x) * k + x + (0 if m is None else m)\n",
        LOOP.replace("20", "40").replace("f(x)", "f(x, m=torch.ones(8)) if i % 2 else f(x, k=3.0, z=1)"),
        F,
    ),
    "a default that grows": Scenario(
        "def f(x, seen=[]):\n    seen.append(1)\n    return net(x) * len(seen)\n",
        LOOP + "len(f.__defaults__[0])",
        NET,
        {"GR404"},
    ),
    "a default that is written": Scenario(
        "def f(x, total=torch.zeros(2, 8)):\n    total.add_(1)\n    return net(x) * total + x\n",
        LOOP + "f.__defaults__",
        F,
    ),
    "functools.partial": Scenario(
        "def g(k, x):\n    return net(x) * k + x\nf = functools.partial(g, 0.3)\n", LOOP, {"g"}
    ),
    "a decorated function": Scenario("@torch.no_grad()\n" + STEP, LOOP, NET),
    "closures with other values": Scenario(
        "def make(k):\n    def f(x):\n        return net(x) * k + x\n    return f\n",
        "f = make(0.3)\n" + LOOP + "f = make(0.6)\n" + LOOP,
        {"make.<locals>.f"},
    ),
    "a global that changes": Scenario(
        "k = 1.0\ndef f(x):\n    return net(x) + x * k\n",
        LOOP.replace("20", "40").replace("x = f(x)", "k = 1.0 if i < 30 else 2.0; x = f(x)"),
        F,
    ),
    "weights that change": Scenario(STEP, LOOP.replace("x = f(x)", "net.a.weight.mul_(1.01); x = f(x)"), BODY),
    "a layer that is replaced": Scenario(STEP, LOOP + "net.a = torch.nn.Linear(8, 16)\n" + LOOP, F),
    "a hook that comes and goes": Scenario(
        STEP + "seen = []\n",
        LOOP + "h = net.register_forward_hook(lambda *a: seen.append(1))\n" + LOOP + "h.remove()\nlen(seen)",
        F,
    ),
    "a data loader": Scenario(
        "from torch.utils.data import DataLoader, TensorDataset\ndata = TensorDataset(torch.randn(80, 8))\n",
        "total = 0\nwith torch.no_grad():\n    for (x,) in DataLoader(data, batch_size=4, shuffle=True):\n"
        "        total += net(x).sum().item()\ntotal",
        NET,
        {"GR101"},
    ),
    "copies and files of the model": Scenario(
        STEP,
        LOOP + "c, file = copy.deepcopy(net), io.BytesIO()\ntorch.save(net.state_dict(), file)\n"
        "torch.save(net, file, pickle_module=pickle)\nd = pickle.loads(pickle.dumps(c.a))\n"
        "with torch.no_grad():\n    same = torch.equal(c(x), net(x)), torch.equal(d(x), net.a(x))\nsame",
        F,
    ),
    "looking at the function": Scenario(
        "def f(x, k: float = 0.5, *, z=1):\n    'doc'\n    return net(x) * k + x\n",
        LOOP + "print(inspect.signature(f), inspect.getsource(f), f.__doc__, f.__name__, f.__module__)\n"
        "print(f.__defaults__, f.__kwdefaults__, f.__annotations__, inspect.getfullargspec(f))\nhelp(f)\n",
        F,
    ),
    "a compiled model": Scenario("c = torch.compile(net, backend='eager')\n", LOOP.replace("f(x)", "c(x)")),
    "a compiled function": Scenario("@torch.compile(backend='eager')\n" + STEP, LOOP),
    "without no_grad": Scenario(STEP, "x = torch.randn(2, 8)\nfor i in range(8):\n    x = f(x)\n", set(), {"GR405"}),
    "inference mode": Scenario(STEP, LOOP.replace("no_grad", "inference_mode") + "x.is_inference()", F),
    "autocast": Scenario(STEP, LOOP.replace("no_grad()", "no_grad(), torch.autocast('cpu')"), F),
    "another thread": Scenario(
        STEP + "out = []\ndef work():\n    with torch.no_grad():\n        out.append(f(torch.ones(2, 8)))\n",
        LOOP + "t = threading.Thread(target=work); t.start(); t.join()\n",
        F,
    ),
    "the model raises after replays": Scenario("", LOOP.replace("f(x)", "net(x)") + "net(torch.ones(5, 8))\n", NET),
    "a function raises after replays": Scenario(STEP, LOOP + "f(torch.ones(5, 8))\n", F),
    "wrong arguments after replays": Scenario(STEP, LOOP + "f()\n", F),
    "errors that are caught": Scenario(
        STEP + "errors = []\n",
        LOOP
        + "        try:\n            f(torch.ones(5, 8))\n"
        + "        except ValueError as e:\n            errors.append(str(e))\n",
        F,
    ),
}


def plain_data(value: Any, depth: int = 0) -> Any:
    """What can be compared: the bits of tensors, the state of modules, the contents of containers."""
    if isinstance(value, torch.Tensor):
        bits = value.detach().contiguous().view(-1).view(torch.uint8).tolist()
        return str(value.dtype), tuple(value.shape), value.stride(), value.requires_grad, bits
    if isinstance(value, torch.nn.Module):
        state = {name: plain_data(tensor) for name, tensor in value.state_dict().items()}
        return type(value).__name__, value.training, sorted(vars(value)), state
    if isinstance(value, dict) and depth < 4:
        return {repr(key): plain_data(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple) and depth < 4:
        return type(value).__name__, [plain_data(item, depth + 1) for item in value]
    if isinstance(value, FunctionType):
        return value.__qualname__, sorted(vars(value))
    return repr(value) if isinstance(value, int | float | str | bool | None) else type(value).__name__


def run(shell: InteractiveShell, source: str) -> dict[str, Any]:
    with capture_output() as captured:
        result = shell.run_cell(source, store_history=True)
    error = result.error_in_exec or result.error_before_exec
    frames = traceback.extract_tb(error.__traceback__) if error else []
    ours = Path(grape.__file__).parent
    assert not [frame for frame in frames if Path(frame.filename).is_relative_to(ours)]
    return {
        "result": plain_data(result.result),
        "error": repr(error),
        "lines": [(frame.lineno, frame.name) for frame in frames if "IPython" not in frame.filename],
        "stdout": re.sub(r"(Out|In) ?\[\d+\]", r"\1", captured.stdout),
        "outputs": [output.data for output in captured.outputs if "text/html" not in output.data],
        "names": {name: plain_data(value) for name, value in shell.user_ns.items() if _is_persons(name)},
        "streams": (torch.get_rng_state().tolist(), random.getstate()),
    }


def _is_persons(name: str) -> bool:
    return not name.startswith("_") and name not in ("In", "Out")


RUNS = ["%%grape", "%%grape", "# plain", "%grape undo", "# plain", "%%grape", "%grape reset", "# plain"]


# The compiler cleans up in a namespace that the shell has already emptied, and says so from a weak reference.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", list(SCENARIOS))
def test_same_results_with_and_without(shell: InteractiveShell, name: str) -> None:
    scenario = SCENARIOS[name]
    expected, found, reports = [], [], []
    for under_grape, runs in ((False, expected), (True, found)):
        torch._dynamo.reset()
        shell.reset(new_session=False)
        if under_grape:
            load(shell)
        assert run(shell, SETUP + scenario.setup)["error"] == "None"
        for first in RUNS:
            if not first.startswith("%grape "):
                runs.append(run(shell, (first if under_grape else "# plain") + "\n" + scenario.cell))
                if under_grape and first == "%%grape":
                    reports.append(grape.last.to_dict())
            elif under_grape:
                assert run(shell, first)["error"] == "None"
    for one, other in zip(expected, found, strict=True):
        for key in one:
            assert other[key] == one[key], key
    replayed = {region["name"] for region in reports[0]["regions"] if region["outcome"] == "replayed"}
    assert replayed == scenario.replayed
    for report in reports[:2]:
        codes = {finding["code"] for finding in report["findings"] if finding["severity"] != "info"}
        assert scenario.codes <= codes
        assert codes & {"GR402", "GR404", "GR405", "GR406"} <= scenario.codes | scenario.may


def test_a_refusal_of_an_earlier_cell_is_not_told_of_where_the_loop_replays(shell: InteractiveShell) -> None:
    step = "loss = net(x).square().mean()\n"
    rest = "    opt.zero_grad(); loss.backward(); opt.step()\n"
    setup = (
        "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)\n"
        "    def forward(self, x):\n        return torch.tanh(self.b(torch.relu(self.a(x))))\n"
        "net = Net()\nopt = torch.optim.SGD(net.parameters(), 0.1)\n"
    )
    autocast = f"    with torch.autocast('cpu', dtype=torch.bfloat16):\n        {step}"
    load(shell)
    with capture_output():
        assert shell.run_cell(setup + "batches = torch.randn(40, 4, 8)\n").success
        for body in (f"{autocast}{rest}    float(loss)\n", f"    {step}{rest}"):
            assert shell.run_cell(f"%%grape --no-widget\nfor x in batches:\n{body}", store_history=True).success
    assert grape.last is not None
    assert [(region.name, region.outcome) for region in grape.last.regions] == [("loop at line 2", "replayed")]
    assert [finding for finding in grape.last.findings if finding.code == "GR405"] == []


def test_a_module_is_told_of_where_this_cell_calls_it(shell: InteractiveShell) -> None:
    """Not where it was called when Grape met it, in a cell that may be gone."""
    setup = (
        "import torch\nnet = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])\n"
        "other = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(5)])\nx = torch.ones(4, 8)\n"
    )
    load(shell)
    with capture_output():
        assert shell.run_cell(setup, store_history=True).success
        for before in ("", "\n", "\n\n"):
            body = "    made = other(x)\n    with torch.no_grad():\n        net(x)\n    if i > 90: break\n"
            cell = f"%%grape --no-widget\n{before}for i in range(20):\n{body}"
            assert shell.run_cell(cell, store_history=True).success
            assert grape.last is not None
            name, line = f"In[{shell.execution_count - 1}]", 3 + len(before)
            rows = {region.name: (region.file, region.line) for region in grape.last.regions}
            assert rows["Sequential (other)"] == (name, line) and rows["Sequential (net)"] == (name, line + 2)
            (refused,) = [finding for finding in grape.last.findings if finding.region == "Sequential (other)"]
            assert refused.code == "GR405" and refused.at is not None
            assert (refused.at.file, refused.at.line) == (name, line)


def test_packed_weights_are_no_number(shell: InteractiveShell) -> None:
    """Each look at them gives another object: "a Python number changes: ScriptObject", said the report."""
    layer = "torch.ao.nn.quantized.dynamic.Linear(8, 8)"
    setup = f"import torch\nnet = torch.nn.Sequential({layer}, torch.nn.ReLU(), {layer}).eval()\nx = torch.ones(2, 8)"
    notebook = Notebook(shell, setup + "\nfrom grape.magics import load; load(get_ipython())")
    found = notebook.under_grape("%%grape --engine regions\nfor _ in range(8):\n    y = net(x)\n")
    said = [finding for finding in found["findings"] if "linear_dynamic" in finding["message"]]
    assert [one["code"] for one in said] == ["GR405"] and "`ScriptObject`" in said[0]["message"]


def test_a_block_in_a_cell_is_told_by_the_name_of_the_cell(notebook: Notebook) -> None:
    notebook.run("def read(x):\n    return x.exp().sum().item()")
    notebook.run("import grape, torch\nwith grape.session():\n    read_of = [read(torch.ones(9)) for _ in range(30)]")
    number = notebook.shell.execution_count - 1
    assert grape.last is not None
    told = grape.last.to_dict()
    assert told["cell"]["file"] == f"In[{number}]"
    assert {one["file"] for one in told["findings"]} <= {f"In[{number}]", f"In[{number - 1}]"}
    assert all(one.fix is None or not one.fix.verified for one in grape.last.with_fixes().findings)
