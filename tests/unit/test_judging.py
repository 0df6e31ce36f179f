"""What a traced call may hold to be captured, beside a device that is not the CPU."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._higher_order_ops.out_dtype import out_dtype
from torch.utils._python_dispatch import TorchDispatchMode

from grape.model import Refused
from grape.runtime.capture import judge
from grape.runtime.capture.running.lockstep import Diverged, Lockstep
from grape.tracing import HIGHER_ORDER, PositionFinder, Recorder, Tracer, record

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


def test_a_higher_order_operator_is_in_no_graph() -> None:
    """What it is made of, no mode sees; so it has no record, and stands among the escapes."""
    whole = torch.ones(2, 2, dtype=torch.int8)

    def call() -> Any:
        made = torch.ones(4).mul(2).add(1).sin()
        return made, out_dtype(torch.ops.aten.mm.default, torch.int32, whole, whole)

    tracer = Tracer(PositionFinder())
    result, traced, escapes = record(tracer, torch.device("cpu"), [], call)
    assert escapes == ((HIGHER_ORDER, None),) and torch.equal(result[1], out_dtype_of(whole))
    backend: Any = types.SimpleNamespace(device=torch.device("cpu"))
    refused = judge(traced, [], list(result), escapes, backend)
    assert isinstance(refused, Refused) and "higher-order" in refused.why
    with pytest.raises(Diverged), Lockstep(traced, Recorder(torch.device("cpu")), PositionFinder(), {}, {}):
        out_dtype(torch.ops.aten.mm.default, torch.int32, whole, whole)


def out_dtype_of(whole: torch.Tensor) -> torch.Tensor:
    return whole.int() @ whole.int()
