"""What Grape tries out with torch is seen by no mode of the person's, whenever it comes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grape.runtime.buffers import growable
from grape.runtime.once import tried_once
from grape.runtime.replaying import node_numbers
from grape.runtime.training import consumed, homes


class Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


TRIALS = [growable._fields, homes._uses_alone, homes._held_by_grad, node_numbers.is_supported, consumed._freed]


@pytest.mark.parametrize("trial", TRIALS)
def test_no_mode_and_no_hook_sees_a_trial(trial: Any) -> None:
    expected = trial()
    trial.cache_clear()
    packed: list[torch.Tensor] = []
    with Log() as log, torch.autograd.graph.saved_tensors_hooks(packed.append, lambda _: None):
        found = trial()
    assert log.seen == [] and packed == [] and found == expected


def test_a_trial_is_made_once_and_what_it_raises_is_raised() -> None:
    tried: list[bool] = []

    @tried_once
    def modes() -> int:
        tried.append(torch.is_grad_enabled())
        return len(tried)

    with torch.no_grad():
        assert [modes(), modes()] == [1, 1] and tried == [True]

    @tried_once
    def fails() -> int:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fails()
