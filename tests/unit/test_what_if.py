"""`grape.what_if`: levers measured on copies, and nothing of the person's changes."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import Tensor, nn

import grape
from grape.errors import UsageError
from grape.whatif import levers


@pytest.fixture
def images() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    return net, torch.randn(2, 3, 8, 8)


def rows(found: grape.WhatIf) -> dict[str, grape.whatif.Tried]:
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
    assert not found.trains and "net(...), forward, on the CPU" in str(found)
    assert known["channels_last"].time is not None and known["channels_last"].failed is None
    assert 1e-5 < (known["bfloat16 (autocast)"].difference or 0) < 0.1
    assert known["TF32"].failed == "for a GPU" and known["TF32"].time is None
    assert known["channels_last"].write == "net.to(memory_format=torch.channels_last), and images too"
    assert json.loads(json.dumps(found.to_dict()))["tried"][1]["name"] == "bfloat16 (autocast)"


def test_training_with_its_gradients(images: tuple[nn.Module, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiler(monkeypatch)
    net, x = images
    state, seed = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    found = grape.what_if(net, (x,))
    assert found.trains and "forward and backward" in str(found)
    assert all(value.equal(net.state_dict()[name]) for name, value in state.items())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert torch.get_rng_state().equal(seed)
    assert rows(found)["float16"].failed in ("for inference", "for a GPU")


def test_differences_of_what_draws_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    without_compiler(monkeypatch)
    found = grape.what_if(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), (torch.randn(4, 8),))
    row = rows(found)["bfloat16 (autocast)"]
    assert row.time is not None and row.difference is None
    assert "draws random numbers" in str(found)


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
