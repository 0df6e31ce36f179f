"""Cells with blocks, modes and transforms of torch's own leave what they leave without Grape, and torch as it was."""

from __future__ import annotations

import traceback
import warnings
from typing import Any

import pytest
import torch
import torch._dynamo.mutation_guard
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from grape.magics import load

torch._dynamo.mutation_guard.install_generation_tagging_init()  # the first compilation does it, for good

SETUP = """\
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
log = []
"""

INFERENCE = {
    "toggled": """\
for i in range(40):
    with torch.inference_mode(bool(i % 2)):
        log.append(net(torch.randn(2, 8)).sum().item())
""",
    "trained inside": """\
@torch.inference_mode(False)
def finetune(x):
    net.zero_grad()
    loss = net(x.clone()).pow(2).mean()
    loss.backward()
    return loss.item()
with torch.inference_mode():
    for i in range(40):
        log.append(net(torch.randn(4, 8)).sum().item())
        if i % 3 == 0:
            log.append(finetune(torch.randn(4, 8)))
""",
    "the guard itself": """\
for i in range(40):
    with torch._C._InferenceMode(False):
        log.append(net(torch.randn(2, 8)).sum().item())
""",
}


def ran(shell: InteractiveShell, setup: str, cell: str) -> tuple[list[Any], list[str]]:
    """What the cell logged, and the warnings that it showed. Afterwards torch works."""
    with capture_output():
        assert shell.run_cell(SETUP + setup).success
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert shell.run_cell(cell).success
        torch.randn(2)
        assert not torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Python)
    return shell.user_ns["log"], [str(warning.message) for warning in caught]


def is_as_plain(shell: InteractiveShell, cell: str, setup: str = "") -> None:
    load(shell)
    plain = ran(shell, setup, cell)
    for options in ("", " --engine regions"):
        assert [ran(shell, setup, f"%%grape --no-widget{options}\n{cell}") for _ in range(2)] == [plain, plain]


@pytest.mark.parametrize("name", INFERENCE)
def test_torch_works_behind_inference_mode(shell: InteractiveShell, name: str) -> None:
    is_as_plain(shell, INFERENCE[name])


OTHERWISE = {
    "eigvalsh": "torch.linalg.eigvalsh(symmetric)",
    "svdvals": "torch.linalg.svdvals(matrix)",
    "imported by name": "svdvals(matrix)",
    "cond": "torch.linalg.cond(matrix)",
    "nuclear": "torch.linalg.matrix_norm(matrix, 'nuc')",
    "norm": "torch.norm(matrix, p='nuc') + matrix.norm(p='nuc')",
    "spectral": "torch.linalg.norm(matrix, 2)",
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_torch_computes_otherwise_below_modes_is_as_plain(shell: InteractiveShell, name: str) -> None:
    setup = f"""\
from torch.linalg import svdvals
matrix, wide = torch.randn(9, 9), nn.Linear(9, 9)
symmetric = matrix @ matrix.T + torch.eye(9)
def f(x):
    return wide(x) + {OTHERWISE[name]}
"""
    cell = f"""\
for i in range(12):
    log.append(({OTHERWISE[name]} * 2).tolist())
with torch.no_grad():
    for i in range(12):
        log.append(f(matrix).tolist())
        log.append((wide(matrix) * 2).sum().item())
try:
    torch.linalg.svdvals(matrix.long())
except Exception as error:
    log.append(str(error))
"""
    is_as_plain(shell, cell, setup)
    assert torch.linalg.svdvals is shell.user_ns["svdvals"] and "Grape" not in repr(torch.linalg.svdvals)
    assert type(torch.linalg.svdvals) is type(torch.linalg.svd)


BACKWARD = {
    "prod": "h.prod(1).sum()",
    "cumprod": "h.cumprod(1).sum()",
    "det": "torch.linalg.det(h[:, :4])",
    "matrix_exp": "torch.linalg.matrix_exp(h[:, :4]).sum()",
    "masked_fill": "(h.masked_fill(h > 0, h.mean()) * h.detach().exp()).sum()",
}


@pytest.mark.parametrize("name", BACKWARD)
def test_backward_passes_that_ask_for_subclasses_are_as_plain(shell: InteractiveShell, name: str) -> None:
    setup = f"""\
inputs, wide = torch.randn(4, 8), nn.Linear(8, 6)
def f(x):
    h = torch.tanh(wide(x))
    return {BACKWARD[name]}
def nodes(node, deep=8):
    return node and deep and [node.name(), *(nodes(one, deep - 1) for one, _ in node.next_functions)]
"""
    cell = """\
for i in range(12):
    wide.zero_grad()
    loss = f(inputs)
    loss.backward()
    log.append(wide.weight.grad.tolist())
    gradients = torch.autograd.grad(f(inputs), wide.parameters(), create_graph=True)
    log.append([(one.tolist(), nodes(one.grad_fn)) for one in gradients])
    log.append(torch.autograd.grad(gradients[0].pow(2).sum(), wide.weight)[0].tolist())
"""
    is_as_plain(shell, cell, setup)


@pytest.mark.parametrize("call", ["linalg.eigvalsh(torch.ones(2, 3))", "linalg.norm(torch.ones(2), 3j)", "Tensor(1.5)"])
def test_errors_of_what_torch_computes_otherwise_show_no_frames_of_grapes(shell: InteractiveShell, call: str) -> None:
    load(shell)
    with capture_output():
        error = shell.run_cell(f"%%grape --no-widget\nimport torch\ntorch.{call}").error_in_exec
    frames = traceback.extract_tb(error.__traceback__)
    assert [frame.filename for frame in frames if "grape" in frame.filename] == [], frames


def test_a_higher_order_operator_behind_more_than_is_traced(shell: InteractiveShell) -> None:
    """The mode is muted then, and still on the stack, where torch.cond finds it and raises."""
    cell = """\
x = torch.ones(4)
for i in range(3000):
    x = (x * 1.5).sin() + 1
    if i > 2990:
        x = torch.cond(x.sum() > 5, lambda t: t.sin(), lambda t: t.cos(), (x,))
log.append(x.tolist())
"""
    is_as_plain(shell, cell, "torch.cond(torch.tensor(True), lambda t: t.sin(), lambda t: t.cos(), (torch.ones(4),))\n")


def test_the_compiler_finds_functions_that_torch_computes_otherwise(shell: InteractiveShell) -> None:
    setup = """\
compiled = torch.compile(lambda x: torch.linalg.matrix_norm(x * 2).sum(), backend="eager", fullgraph=True)
matrix = torch.randn(5, 5)
"""
    cell = """\
for i in range(6):
    log.append(net(torch.randn(2, 8)).sum().item())
    log.append(compiled(matrix).item())
"""
    is_as_plain(shell, cell, setup)


COMPILES_BY_ITSELF = {
    "cond": "x = torch.cond(x.sum() > 0, inner, step, (x,))",
    "export": "x = torch.export.export(net, (x,)).module()(x)",
    "make_fx": "x = make_fx(step)(x)(x)",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", COMPILES_BY_ITSELF)
def test_what_traces_the_persons_functions_by_itself(shell: InteractiveShell, name: str) -> None:
    """torch.cond compiles what it is given, and nothing in the notebook tells of it beforehand; fake tensors, as those
    of torch.export, ask a mode for what is no operator."""
    setup = """\
from torch.fx.experimental.proxy_tensor import make_fx
def inner(a): return net(a).relu() * 2
def step(a): return inner(a) + a
"""
    cell = f"""\
x = torch.randn(4, 8)
with torch.no_grad():
    for i in range(8):
        {COMPILES_BY_ITSELF[name]}
        x = step(x / x.norm())
        log.append(x.tolist())
"""
    is_as_plain(shell, cell, setup)


HIGHER_ORDER = {
    "cond": "torch.cond(x.sum() > 3, lambda t: (t.sin(),), lambda t: (t.cos() + 1,), (x,))[0]",
    "while_loop": "while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x))[1]",
    "flex_attention": "flex_attention(x.view(1, 2, 16, 8), x.view(1, 2, 16, 8), x.view(1, 2, 16, 8))",
    "out_dtype": "(out_dtype(torch.ops.aten.mm.default, torch.int32, whole, whole).repeat(4, 1) + x)",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HIGHER_ORDER)
def test_higher_order_operators_run_as_written(shell: InteractiveShell, name: str) -> None:
    setup = f"""\
from torch._higher_order_ops.out_dtype import out_dtype
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention
whole = torch.ones(8, 8, dtype=torch.int8)
class Model(nn.Module):
    def forward(self, x):
        return net({HIGHER_ORDER[name]}.float().view(32, 8)) * 2 + 1
model = Model()
model(torch.ones(32, 8))
"""
    cell = f"""\
with torch.no_grad():
    for i in range(20):
        x = torch.randn(32, 8)
        log.append(model(x).sum().item())
        log.append({HIGHER_ORDER[name]}.sum().item())
"""
    is_as_plain(shell, cell, setup)


COMPILED = {
    "with a graph break": """\
@torch.compile(backend="eager")
def step(x):
    y = net(x)
    if y.sum() > 0:
        return y * 2
    return y - 1
""",
    "beside modules that it does not compile": """\
@torch.compiler.disable
def unseen(x):
    return net(x)
@torch.compile(backend="eager")
def step(x):
    return unseen(x * 2) + unseen(x)
""",
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_functions_are_compiled_as_without_grape(shell: InteractiveShell, name: str) -> None:
    cell = COMPILED[name] + "for i in range(20):\n    log.append(step(torch.randn(4, 8)).sum().item())\n"
    is_as_plain(shell, cell)


def test_the_compiler_passes_by_code_of_grape(shell: InteractiveShell) -> None:
    load(shell)
    cell = COMPILED["beside modules that it does not compile"] + "for i in range(20):\n    step(torch.randn(4, 8))\n"
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.guard_failures.clear()
    ran(shell, "", f"%%grape --no-widget --engine regions\n{cell}")
    taken = [code for code in torch._dynamo.convert_frame.input_codes.seen if "/grape/" in code().co_filename]
    assert taken == []


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("times", [1, 4])
def test_torchscript_traces_what_the_plain_cell_has_it_trace(shell: InteractiveShell, times: int) -> None:
    cell = f"""\
net.requires_grad_(False)
def model(x):
    return net(x) * 2
with torch.no_grad():
    for i in range(20):
        log.append(model(torch.randn(4, 8)).sum().item())
for i in range({times}):
    traced = torch.jit.trace(net, torch.randn(4, 8))
    log.append(traced(torch.ones(4, 8)).sum().item())
    log.append(str(traced.graph).count("aten::"))
    traced = torch.jit.trace(model, torch.randn(4, 8))
    log.append(str(traced.graph).count("aten::"))
    log.append(traced(torch.ones(4, 8)).sum().item())
"""
    is_as_plain(shell, cell)


@pytest.mark.filterwarnings("ignore:torch.ao")
def test_a_dynamically_quantized_model(shell: InteractiveShell) -> None:
    setup = "small = torch.ao.quantization.quantize_dynamic(net.eval(), {nn.Linear}, dtype=torch.qint8)\n"
    cell = "with torch.no_grad():\n    for i in range(40):\n        log.append(small(torch.randn(2, 8)).sum().item())\n"
    is_as_plain(shell, cell, setup)


def test_no_warning_of_a_gradient_that_nobody_asked_for(shell: InteractiveShell) -> None:
    cell = """\
net.requires_grad_(False)
for i in range(40):
    log.append(net(torch.randn(2, 8)).sum().item())
w = torch.ones(2, 8, requires_grad=True)
for i in range(40):
    log.append(net(w * 0.5).sum().item())
"""
    is_as_plain(shell, cell)


@pytest.mark.parametrize("before", [0, 12])
def test_a_mode_of_the_person_sees_the_operators_of_the_plain_cell(shell: InteractiveShell, before: int) -> None:
    setup = """\
from torch.utils._python_dispatch import TorchDispatchMode
class Count(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        log.append(str(func))
        return func(*args, **(kwargs or {}))
count = Count()
optimizer = torch.optim.SGD(net.parameters(), 0.05)
def step():
    optimizer.zero_grad()
    loss = net(torch.randn(8, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss
step()
"""
    cell = f"""\
for i in range(60):
    if i % 20 < {before}:
        loss = step()
    elif i % 20 < 16:
        with count:
            loss = step()
    log.append(loss.item())
"""
    is_as_plain(shell, cell, setup)
