"""A function that sets torch for the whole process sets it at each call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from grape.options import Options
from grape.sessions import Cell, Session, close_engine, engine

SETUP = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
x = torch.ones(2, 8)
def f(x):
    with torch.no_grad():
        y = torch.tanh(net(x)) + x
    {set}
    return y
"""
CELL = """
{first}
for i in range(24):
    x = f(x)
    seen.append({read})
    {back}
"""
SETTINGS = {
    "benchmark": ("torch.backends.cudnn.benchmark = {}", "torch.backends.cudnn.benchmark", "True", "False"),
    "allow_tf32": (
        "torch.backends.cuda.matmul.allow_tf32 = {}",
        "torch.backends.cuda.matmul.allow_tf32",
        "True",
        "False",
    ),
    "mkldnn": ("torch.backends.mkldnn.set_flags({})", "torch._C._get_mkldnn_enabled()", "False", "True"),
    "flash": ("torch.backends.cuda.enable_flash_sdp({})", "torch.backends.cuda.flash_sdp_enabled()", "False", "True"),
    "autocast cache": ("torch.set_autocast_cache_enabled({})", "torch.is_autocast_cache_enabled()", "False", "True"),
    "invariants": (
        "torch._C._set_check_sparse_tensor_invariants({})",
        "torch._C._check_sparse_tensor_invariants()",
        "True",
        "False",
    ),
    "multithreading": (
        "torch.autograd.set_multithreading_enabled({})",
        "torch._C._is_multithreading_enabled()",
        "False",
        "True",
    ),
    "threads": ("torch.set_num_threads({})", "torch.get_num_threads()", "2", "1"),
    "dtype": ("torch.set_default_dtype({})", "torch.get_default_dtype()", "torch.float64", "torch.float32"),
    "precision": (
        "torch.set_float32_matmul_precision({})",
        "torch.get_float32_matmul_precision()",
        "'high'",
        "'highest'",
    ),
    "autocast of CUDA": (
        "torch.set_autocast_dtype('cuda', {})",
        "torch.get_autocast_dtype('cuda')",
        "torch.bfloat16",
        "torch.float16",
    ),
}


@pytest.fixture(params=SETTINGS)
def setting(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, str, str]]:
    made = SETTINGS[request.param]
    names = {"torch": torch}
    then = eval(made[1], names)
    exec(made[0].format(made[3]), names)
    yield made
    exec(made[0].format(repr(then)), names)
    close_engine()


def seen_in(change: str, source: str, *, grape: bool) -> tuple[list[object], bytes]:
    names: dict[str, Any] = {"__name__": "__main__", "seen": []}
    exec(compile(SETUP.format(set=change), "<ipython-input-1>", "exec"), names)
    for _ in range(3):
        if grape:
            session = Session(
                options=Options(engine="regions"), cell=Cell(name="In[1]", source=source, filename="x"), namespace=names
            )
            session.open()
            exec(compile(source, "<ipython-input-2>", "exec"), names)
            session.close(None)
        else:
            exec(compile(source, "<ipython-input-2>", "exec"), names)
    return names["seen"], names["x"].numpy().tobytes()


@pytest.mark.parametrize("first", ["back", "set"])
def test_what_a_function_sets_is_set_at_each_call(setting: tuple[str, str, str, str], first: str) -> None:
    """Also where it was set before, so that the first calls change nothing."""
    change, read, value, other = setting
    if first == "set" and "autocast_dtype" in change:
        pytest.skip("a block of autocast sets it as well, and sets it back")
    begun = change.format(value) if first == "set" else ""
    back = change.format(other)
    if first == "set":
        back = f"if i > 12:\n        {back}"
    source = CELL.format(read=read, back=back, first=begun)
    assert seen_in(change.format(value), source, grape=True) == seen_in(change.format(value), source, grape=False)


def test_what_stays_set_is_replayed() -> None:
    """The first call alone changes it: a library that sets itself up."""
    change, read, value, other = SETTINGS["autocast cache"]
    try:
        source = CELL.format(read=read, back="", first="")
        assert seen_in(change.format(value), source, grape=True) == seen_in(change.format(value), source, grape=False)
        assert any(region.replays for region in engine().interceptor.regions if region.name == "f")
    finally:
        exec(change.format(other), {"torch": torch})
        close_engine()
