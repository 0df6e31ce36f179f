"""`grape.what_if`: levers measured on copies, and nothing of the person's changes."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import Tensor, nn

import grape
from grape.errors import UsageError
from grape.model import Measured
from grape.whatif import levers
from grape.whatif.results import apart, same
from grape.whatif.table import Tried


@pytest.fixture
def images() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    return net, torch.randn(2, 3, 8, 8)


def rows(found: grape.WhatIf) -> dict[str, Tried]:
    return {one.name: one for one in found.tried}


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    short = tuple(one for one in levers.LEVERS if "compile" not in one.name)
    monkeypatch.setattr("grape.whatif.measure.LEVERS", short)


def test_inference(images: tuple[nn.Module, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiler(monkeypatch)
    net, x = images
    found = grape.what_if(net.eval(), (x,), name="net")
    known = rows(found)
    assert found.as_written.time is not None and found.as_written.time.n == 7
    assert not found.trains and "net(...), forward without gradients, on the CPU" in str(found)
    assert known["channels_last"].time is not None and known["channels_last"].failed is None
    assert 1e-5 < (known["bfloat16 (autocast)"].difference or 0) < 0.1
    assert known["TF32"].failed == "for a GPU" and known["TF32"].time is None
    assert known["channels_last"].write == "net.to(memory_format=torch.channels_last), and images too"
    assert json.loads(json.dumps(found.to_dict()))["tried"][1]["name"] == "bfloat16 (autocast)"


def test_training_with_its_gradients(images: tuple[nn.Module, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiler(monkeypatch)
    net, x = images
    net.append(nn.Dropout(0.5))
    state = copy.deepcopy(net.state_dict())
    seed, python, arrays = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()
    found = grape.what_if(net, (x,))
    assert found.trains and "forward and backward" in str(found)
    assert all(value.equal(net.state_dict()[name]) for name, value in state.items())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert torch.get_rng_state().equal(seed)
    assert random.getstate() == python and (numpy.random.get_state()[1] == arrays).all()
    assert rows(found)["float16"].failed in ("for inference", "for a GPU")


def test_differences_of_what_draws_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiler(monkeypatch)
    found = grape.what_if(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), (torch.randn(4, 8),))
    row = rows(found)["bfloat16 (autocast)"]
    assert row.time is not None and row.difference is None
    assert row.results == "draws random numbers" and row.results in str(found)


def test_a_lever_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Picky(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if torch.is_autocast_enabled("cpu"):
                raise ValueError("no half\nof anything")
            return super().forward(x)

    without_compiler(monkeypatch)
    net = nn.Sequential(Picky(12, 12), nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 3, 1)).eval()
    known = rows(grape.what_if(net, (torch.randn(2, 12),)))
    assert known["bfloat16 (autocast)"].failed == "failed: ValueError: no half"
    assert known["channels_last"].time is not None


def test_time_that_is_up(images: tuple[nn.Module, Tensor]) -> None:
    found = grape.what_if(images[0], (images[1],), seconds=0)
    assert rows(found)["bfloat16 (autocast)"].failed == "not tried: the time was up"
    assert found.best is None and str(found).endswith("nothing that was tried makes it faster")


def test_what_cannot_be_measured() -> None:
    with pytest.raises(UsageError, match=r"the call of an nn.Module, not of builtin"):
        grape.what_if(len, (1,))
    with pytest.raises(UsageError, match=r"as a tuple, what_if\(model, \(x,\)\), not as Tensor"):
        grape.what_if(nn.Linear(2, 2), torch.ones(3, 2))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the call as it is fails: RuntimeError"):
        grape.what_if(nn.Linear(2, 2), (torch.ones(3),))
    net = nn.Linear(2, 2)
    net.kept = net.weight * 2  # no leaf
    with pytest.raises(UsageError, match="Linear cannot be copied"):
        grape.what_if(net, (torch.ones(2),))
    frozen = nn.Linear(2, 2)
    frozen.register_forward_hook(lambda module, args, result: result.detach())
    with pytest.raises(UsageError, match="nothing that the module returns has a gradient"):
        grape.what_if(frozen, (torch.ones(2),))


def test_what_cannot_be_repeated_on_copies() -> None:
    class Caching(nn.Linear):
        def forward(self, x: Tensor, cache: SimpleNamespace) -> Tensor:
            cache.seen.append(x)
            return super().forward(x)

    cache = SimpleNamespace(seen=[torch.ones(2)])
    with pytest.raises(UsageError, match="the call changes its arguments"):
        grape.what_if(Caching(2, 2).eval(), (torch.ones(2), cache))
    assert len(cache.seen) == 1
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    net.forward = lambda x: net[1](net[0](x))  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="reaches the module that was copied"):
        grape.what_if(net, (torch.ones(3, 2),))
    assert all(parameter.grad is None for parameter in net.parameters())
    compiled = nn.Linear(2, 2)
    compiled.compile()
    with pytest.raises(UsageError, match="compiled in place"):
        grape.what_if(compiled, (torch.ones(2),))


def test_weights_on_the_cpu_and_inputs_in_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Named(nn.Linear):
        def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
            return {"y": super().forward(x["x"])}

    without_compiler(monkeypatch)
    row = rows(grape.what_if(Named(64, 64).eval(), ({"x": torch.randn(8, 64)},)))["bfloat16 (autocast)"]
    assert row.difference is not None and row.plain is not None and row.speedup is not None


@pytest.mark.parametrize(
    ("expected", "found", "difference", "said"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0, "same bits"),
        ([1.0, -2.0], [1.5, -2.0], 0.25, "differs by 2.5e-01"),
        ([1.0, float("nan"), float("-inf")], [1.0, float("nan"), float("-inf")], 0.0, "same bits"),
        ([1.0, 2.0], [1.0, float("inf")], None, "infinite or NaN elsewhere"),
        ([1.0], [1.0, 2.0], None, "results of other shapes"),
        ([0.0], [0.5], 0.5, "differs by 5.0e-01"),
    ],
)
def test_how_far_apart(expected: list[float], found: list[float], difference: float | None, said: str) -> None:
    assert apart([torch.tensor(expected)], [torch.tensor(found)]) == (difference, said)


def test_how_far_apart_other_results_are() -> None:
    assert apart([], []) == (None, "no results to compare")
    assert apart([torch.tensor([1 + 2j])], [torch.tensor([1 + 3j])]) == (0.5, "differs by 5.0e-01")
    assert apart([torch.tensor([4, 8])], [torch.tensor([4, 8])]) == (0.0, "same bits")
    assert apart([torch.empty(0)], [torch.empty(0)]) == (0.0, "same bits")
    assert not same([torch.ones(2)], [torch.ones(2, dtype=torch.float64)])


def test_the_fastest_is_faster_than_noise_and_right() -> None:
    def tried(times: list[float], difference: float | None = 1e-3, results: str = "") -> Tried:
        known = {"name": "x", "write": "do(x)", "plain": Measured.of([10.0, 10.1, 10.2])}
        return Tried(**known, time=Measured.of(times), difference=difference, results=results)

    assert tried([5.0, 5.1, 5.2]).helps
    assert not tried([9.9, 10.0, 10.1]).helps
    assert not tried([4.0, 9.0, 12.0]).helps
    assert not tried([5.0, 5.1, 5.2], None, "infinite or NaN elsewhere").helps
    assert tried([5.0, 5.1, 5.2], None, "draws random numbers").helps


def test_a_line_says_what_the_call_as_written_took_by_then_where_that_is_another_time() -> None:
    def tried(plain_ms: float) -> Tried:
        return Tried(
            name="x", write="do(x)", time=Measured.of([10.0]), plain=Measured.of([plain_ms]), results="same bits"
        )

    first = Tried(name="as written", write="", time=Measured.of([100.0]))
    found = grape.WhatIf(what="net(...)", device="the CPU", trains=False, as_written=first, tried=(tried(9.0),))
    assert "0.90x  same bits  as written then 9.00 ms\n" in str(found)
    assert "then" not in str(replace(found, tried=(tried(110.0),)))


def test_tf32_is_set_for_its_time_only() -> None:
    (lever,) = (one for one in levers.LEVERS if one.name == "TF32")
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    with lever.pull(SimpleNamespace()):
        assert matmul.fp32_precision == "tf32"
    assert matmul.fp32_precision == before
