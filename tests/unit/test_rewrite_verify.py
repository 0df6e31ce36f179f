"""A rewrite is compared on copies of the namespace, or not at all; the person's objects are never touched."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode

from grape.fixing.verification import verify
from tests.unit.rewrite_cases import outcome

DEFINITIONS = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return torch.relu(self.inner(x))

def scaled(x, k=2.0):
    seen.append(k)
    return x * k
"""


@pytest.fixture
def namespace(tmp_path: Any) -> dict[str, Any]:
    """As a notebook has it: classes and functions come from source that `inspect` finds."""
    torch.manual_seed(0)
    space: dict[str, Any] = {"__name__": "__main__", "torch": torch, "os": os, "time": time, "random": random}
    path = tmp_path / "cell.py"
    path.write_text(DEFINITIONS)
    exec(compile(DEFINITIONS, str(path), "exec"), space)
    space["__name__"] = "__main__"
    exec("net = Net(); xs = [torch.randn(2, 4) for _ in range(3)]; seen = []; y = net(xs[0])", space)
    exec("optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)", space)
    exec("scores = [0.0]; view = xs[0][0]; x = xs[1]; functions = [os.remove]", space)
    exec("data = torch.utils.data.TensorDataset(torch.ones(6, 4))", space)
    exec("loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)", space)
    return space


SAME = [
    ("s = [scaled(x).sum().item() for x in xs]", "s = [v.item() for v in [scaled(x).sum() for x in xs]]"),
    (
        "scores.append(xs[0].sum().item())\nprint(scores)",
        "r = xs[0].sum().item()\nscores += [r]\nprint(scores)",
    ),
    ("z = torch.rand(3)", "z = torch.rand(3)"),
    ("y = net(x)", "y = net(x * 1)"),
    ("for (row,) in loader:\n    last = net(row)", "for (row,) in loader:\n    last = net(row * 1)"),
    ("z = torch.full((2,), float('nan'))", "z = torch.tensor([float('nan')] * 2)"),
    ("xs[0].mul_(2)\nz = view * 1", "xs[0].add_(xs[0])\nz = view * 1"),
    ("%%grape\nz = xs[0] + 1", "%%grape\nz = 1 + xs[0]"),
    ("y = net.inner(xs[0]) * 2", "y = 2 * net.inner(xs[0])"),
    (
        "for x in xs:\n    optimizer.zero_grad()\n    net.inner(x).sum().backward()\n    optimizer.step()",
        "for i in range(3):\n    x = xs[i]\n    optimizer.zero_grad()\n    net.inner(x).sum().backward()\n"
        "    optimizer.step()",
    ),
]
DIFFERENT = [
    ("z = torch.rand(3)", "torch.rand(1)\nz = torch.rand(3)", "`z` differs"),
    ("z = torch.zeros(2)", "z = -torch.zeros(2)", "`z` differs"),
    ("z = torch.zeros(2)", "z = torch.zeros(2, dtype=torch.int32)", "`z` differs"),
    ("z = xs[0].sum().item()", "z = xs[0].sum()", "`z` differs"),
    ("z = 1", "a = 1", "`z` is missing"),
    ("print(1)", "print(2)", "it printed something else"),
    ("z = xs[0]", "z = xs[9]", "the rewrite raised IndexError: list index out of range"),
    ("z = xs[0] * 1", "xs[0].zero_()\nz = xs[1] * 1", "differs"),
    ("optimizer.zero_grad()", "net.inner(xs[0]).sum().backward()\noptimizer.step()", "differs"),
]
NOT_RUN = [
    ("os.remove('x')", "the cell calls `os.remove`, which may do more than compute"),
    ("f = os.remove\nf('x')", "the cell calls `os.remove`, which may do more than compute"),
    ("f = functions[0]\nf('x')", "`functions` holds functions"),
    ("time.sleep(9)", "the cell calls `time.sleep`, which may do more than compute"),
    ("open('x', 'w')", "`open` may do more than compute"),
    ("torch.save(net, 'x')", "the cell calls `torch.save`, which may do more than compute"),
    ("torch.set_num_threads(1)", "the cell calls `torch.set_num_threads`, which may do more than compute"),
    ("torch.backends.cudnn.benchmark = True", "it reaches into the module `torch`"),
    ("xs[0].__class__", "it reaches for `__class__`"),
    ("import subprocess", "it imports `subprocess`"),
    ("class A:\n    pass", "it has a statement that is not run again: classdef"),
    ("global z\nz = 1", "it has a statement that is not run again: global"),
    ("xs[0].register_hook(print)", "`xs[0].register_hook` may do more than compute"),
    ("(lambda: 1)()", "what `lambda: 1` is cannot be told"),
    ("!rm x", "the cell has magic or shell lines"),
    ("missing(1)", "the cell raised NameError when it ran again"),
    ("net(xs[0])", "`Net.forward` uses `weights` of the notebook"),
    ("z = big + 1", "what it uses is larger than 1 MB"),
    ("with torch.no_grad():\n    z = handle", "`handle` is a TextIOWrapper, which is not copied"),
]


def _snapshot(space: dict[str, Any]) -> Any:
    state = {name: value.clone() for name, value in space["net"].state_dict().items()}
    plain = {name: outcome(space[name]) for name in ("xs", "scores", "seen", "view", "y")}
    return outcome(state), plain, sorted(space), random.getstate(), outcome(torch.get_rng_state())


@pytest.mark.parametrize(("old", "new"), SAME)
def test_identical(old: str, new: str, namespace: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    before = _snapshot(namespace)
    assert str(verify(old, new, namespace)) == "identical"
    assert _snapshot(namespace) == before
    assert capsys.readouterr() == ("", "")
    assert namespace["net"].calls == 1 and namespace["net"].inner.weight.grad is None


@pytest.mark.parametrize(("old", "new", "why"), DIFFERENT)
def test_different(old: str, new: str, why: str, namespace: dict[str, Any]) -> None:
    before = _snapshot(namespace)
    checked = verify(old, new, namespace)
    assert checked.result == "different"
    assert why in checked.why
    assert _snapshot(namespace) == before


@pytest.mark.parametrize(("source", "why"), NOT_RUN)
def test_not_run(source: str, why: str, namespace: dict[str, Any]) -> None:
    namespace["big"] = torch.zeros(1 << 19)
    with open(os.devnull) as handle:
        namespace["handle"] = handle
        if "net(" in source:
            namespace["weights"] = torch.ones(4)
            exec(compile(_with_weights(namespace), namespace["path"], "exec"), namespace)
        checked = verify(source, source, namespace, most_bytes=1 << 20)
    assert (checked.result, checked.why) == ("not verified", why)


SEEN: list[int] = []


def _see(*_: Any, **__: Any) -> None:
    SEEN.append(1)


def _own_step(space: dict[str, Any]) -> None:
    space["scheduler"] = torch.optim.lr_scheduler.StepLR(space["optimizer"], 1)


STEP = "loss = net(x).sum()\nloss.backward()\noptimizer.step()\noptimizer.zero_grad()"
OBSERVED: dict[str, tuple[Any, str]] = {
    "modules": (
        lambda space: torch.nn.modules.module.register_module_forward_hook(_see),
        "hooks of all modules or optimizers would see it run again",
    ),
    "backwards": (
        lambda space: torch.nn.modules.module.register_module_full_backward_hook(_see),
        "hooks of all modules or optimizers would see it run again",
    ),
    "optimizers": (
        lambda space: register_optimizer_step_post_hook(_see),
        "hooks of all modules or optimizers would see it run again",
    ),
    "one module": (lambda space: space["net"].inner.register_full_backward_pre_hook(_see), "`net` has hooks"),
    "one optimizer": (lambda space: space["optimizer"].register_step_pre_hook(_see), "`optimizer` has hooks"),
    "a parameter": (lambda space: space["net"].inner.weight.register_hook(_see), "`optimizer` has hooks"),
    "a gradient": (
        lambda space: space["net"].inner.bias.register_post_accumulate_grad_hook(_see),
        "`optimizer` has hooks",
    ),
    "a scheduler": (_own_step, "`optimizer` has a `step` of its own, which a copy would share"),
    "a forward of its own": (
        lambda space: setattr(space["net"].inner, "forward", lambda x: (_see(), x)[1]),
        "`net` has a `forward` of its own, which a copy would share",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("who", OBSERVED)
def test_nobody_sees_it_run(who: str, namespace: dict[str, Any]) -> None:
    observe, why = OBSERVED[who]
    handle = observe(namespace)
    SEEN.clear()
    before = _snapshot(namespace)
    try:
        checked = verify(STEP, STEP, namespace)
    finally:
        if isinstance(handle, torch.utils.hooks.RemovableHandle):
            handle.remove()
    assert (checked.result, checked.why) == ("not verified", why)
    assert _snapshot(namespace) == before
    assert not SEEN


def _with_weights(namespace: dict[str, Any]) -> str:
    """A module whose `forward` reads a tensor of the notebook, which a copy would not see changed."""
    import linecache

    source = "class Net(torch.nn.Module):\n    def forward(self, x):\n        return x * weights\nnet = Net()\n"
    namespace["path"] = "<ipython-input-test>"
    linecache.cache[namespace["path"]] = (len(source), None, source.splitlines(keepends=True), namespace["path"])
    return source


def test_a_function_of_another_cell_is_replaced(namespace: dict[str, Any]) -> None:
    cell = "z = scaled(xs[0])"
    same = "def scaled(x, k=2.0):\n    seen.append(k)\n    return k * x\n"
    assert str(verify(cell, cell, namespace, functions=same)) == "identical"
    assert verify(cell, cell, namespace, functions=same.replace("k * x", "k + x")).why == "`z` differs"
    unsafe = same.replace("seen.append(k)", "os.remove('x')")
    assert (
        verify(cell, cell, namespace, functions=unsafe).why
        == "the cell calls `os.remove`, which may do more than compute"
    )
    assert namespace["scaled"](torch.ones(1)).item() == 2.0 and namespace["seen"] == [2.0]


def test_functions_of_the_notebook_write_copies_only(namespace: dict[str, Any]) -> None:
    assert str(verify("z = scaled(xs[0])\nn = len(seen)", "z = scaled(xs[0])\nn = 1", namespace)) == "identical"
    assert namespace["seen"] == []


def test_nothing_runs_again_that_hooks_of_the_person_or_a_mode_would_see(namespace: dict[str, Any]) -> None:
    seen: list[int] = []

    def hook(*_: Any) -> None:
        seen.append(1)

    hooks = (
        (torch.nn.modules.module.register_module_forward_hook, "hooks of all"),
        (torch.nn.modules.module.register_module_full_backward_hook, "hooks of all"),
        (register_optimizer_step_post_hook, "hooks of all"),
        (namespace["net"].register_forward_hook, "`net` has hooks"),
        (namespace["net"].inner.register_full_backward_pre_hook, "`net` has hooks"),
    )
    source = "y = net(x)\ny.sum().backward()\noptimizer.step()"
    for register, why in hooks:
        handle = register(hook)
        try:
            found = verify(source, source, namespace)
        finally:
            handle.remove()
        assert (found.result, seen) == ("not verified", []) and why in found.why
    with Mode():
        assert verify(source, source, namespace).why == "a mode, a debugger or a profiler would see it"
    assert not seen and verify(source, source, namespace).result == "identical"


class Mode(TorchFunctionMode):
    """Of the person's."""
