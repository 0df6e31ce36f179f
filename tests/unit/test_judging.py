"""What a traced call may hold to be captured, beside a device that is not the CPU."""

from __future__ import annotations

import types
from typing import Any

import torch
import torch._dynamo
from torch.utils._python_dispatch import TorchDispatchMode

from grape.model import Refused
from grape.runtime.capture import judge
from grape.tracing import Recorder

DEVICE = torch.device("meta")
"""Stands for a GPU: its operators are dispatched, and nothing is computed."""


class _Recording(TorchDispatchMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.recorder.before(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        self.recorder.after(before, func, args, kwargs or {}, result, (None, None), 0)
        return result


def judged(function: Any, *given: torch.Tensor) -> Any:
    recorder = Recorder(DEVICE, given)
    with _Recording(recorder):
        result = function(*given)
    backend: Any = types.SimpleNamespace(device=DEVICE)
    return judge(recorder.finish(), given, [result, *given], (), backend)


COUNTER = torch.zeros(())


def _counting(x: torch.Tensor) -> torch.Tensor:
    COUNTER.add_(1)
    return x * 2


def _counting_in_a_list(x: torch.Tensor) -> torch.Tensor:
    torch._foreach_add_([COUNTER], 1.0)
    return x * 2


def _counting_for_itself(x: torch.Tensor) -> torch.Tensor:
    torch.zeros(()).add_(1)
    return x * 2


def test_a_tensor_of_the_cpu_that_the_call_writes() -> None:
    for function in (_counting, _counting_in_a_list):
        refused = judged(function, torch.empty(3, device=DEVICE))
        assert isinstance(refused, Refused)
        assert refused.code == "GR404"
        assert "writes a tensor of the CPU, which a replay would not" in refused.why


def test_an_argument_on_the_cpu_that_the_call_writes() -> None:
    refused = judged(lambda x, n: (n.add_(1), x * 2)[1], torch.empty(3, device=DEVICE), torch.zeros(()))
    assert isinstance(refused, Refused)
    assert refused.code == "GR404"


def test_a_tensor_of_the_cpu_that_it_makes() -> None:
    assert not isinstance(judged(_counting_for_itself, torch.empty(3, device=DEVICE)), Refused)
