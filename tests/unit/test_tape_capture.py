"""What a tape refuses and what it leaves alone: nothing executes on data during capture, the host reads nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from grape.runtime.backends.protocol import CaptureFailed
from grape.runtime.backends.reference.backend import ReferenceBackend


@pytest.fixture
def backend() -> Iterator[ReferenceBackend]:
    made = ReferenceBackend(poison=True)
    yield made
    made.close()


@pytest.fixture(params=[torch.no_grad, torch.inference_mode], autouse=True)
def without_gradients(request: pytest.FixtureRequest) -> Iterator[None]:
    with request.param():
        yield


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


HOST_READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "float": lambda x: float(x.sum()),
    "index": lambda x: range(x.sum().long()),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "array": lambda x: x.__array__(),
    "dlpack": lambda x: x.__dlpack__(),
    "from_dlpack": lambda x: torch.from_dlpack(x),
    "from_dlpack of numpy": lambda x: np.from_dlpack(x * 2),
    "repr": lambda x: repr(x),
    "format": lambda x: f"{x.sum():.3f}",
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "item of a placeholder": lambda x: x[0, 0].item(),
    "inside a composite": lambda x: torch.nn.functional.one_hot(x.long().abs()),
}


@pytest.mark.parametrize("name", HOST_READS)
def test_host_reads_are_refused(backend: ReferenceBackend, x: torch.Tensor, name: str) -> None:
    with pytest.raises(CaptureFailed) as caught:
        backend.capture(lambda: HOST_READS[name](x))
    assert caught.value.code == "GR101"


DYNAMIC: dict[str, Callable[[torch.Tensor], Any]] = {
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "unique": lambda x: x.unique(),
    "masked write of many": lambda x: x.clone().index_put_((x > 0,), x.flatten()[:5]),
    "repeat_interleave": lambda x: x.repeat_interleave(x[:, 0].long().abs(), dim=0),
    "bincount": lambda x: x.flatten().long().abs().bincount(),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_data_dependent_shapes_are_refused(backend: ReferenceBackend, x: torch.Tensor, name: str) -> None:
    with pytest.raises(CaptureFailed) as caught:
        backend.capture(lambda: DYNAMIC[name](x))
    assert caught.value.code == "GR103"


UNSUPPORTED: dict[str, Callable[[torch.Tensor], Any]] = {
    "sparse": lambda x: x.to_sparse(),
    "meta": lambda x: torch.empty(3, device="meta") + 1,
    "reseed": lambda x: torch.manual_seed(3),
    "resize": lambda x: x.clone().resize_(100),
    "own generator": lambda x: x.clone().uniform_(generator=torch.Generator().manual_seed(1)),
    "higher order": lambda x: torch.ops.higher_order.cond(x.sum() > 0, torch.neg, torch.abs, (x,)),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_the_tape_cannot_record_is_refused(backend: ReferenceBackend, x: torch.Tensor, name: str) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with pytest.raises(CaptureFailed) as caught:
        backend.capture(lambda: UNSUPPORTED[name](x))
    assert caught.value.code == "GR405"
    assert torch.equal(before, torch.get_rng_state())


def test_a_backward_is_recorded(backend: ReferenceBackend, x: torch.Tensor) -> None:
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.ones(6, requires_grad=True)
        base = x.clone()
        graph, (gradient,) = backend.capture(lambda: torch.autograd.grad((base * weight).tanh().sum(), weight))
        base.mul_(2)
        graph.replay()
        assert torch.equal(gradient, torch.autograd.grad((base * weight).tanh().sum(), weight)[0])


def test_a_refusal_counts_although_the_body_swallows_it(backend: ReferenceBackend, x: torch.Tensor) -> None:
    def body() -> torch.Tensor:
        try:
            scale = x.sum().item()
        except Exception:
            scale = 1.0
        return x * scale

    with pytest.raises(CaptureFailed) as caught:
        backend.capture(body)
    assert caught.value.code == "GR101"


def test_nothing_executes_during_capture(backend: ReferenceBackend, x: torch.Tensor) -> None:
    """Inputs written in place keep their values, the generator its state, and results hold poison until a replay."""
    before, state, count = x.clone(), torch.get_rng_state(), torch.zeros((), dtype=torch.int64)

    def body() -> tuple[torch.Tensor, ...]:
        x.mul_(2)
        count.add_(1)
        return x + torch.rand_like(x), x.argmax(1), torch.tensor([1.5]), count > 0

    graph, (noisy, index, constant, flag) = backend.capture(body)
    assert torch.equal(x, before) and count.item() == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert noisy.isnan().all() and constant.isnan().all() and flag.all()
    assert (index == torch.iinfo(torch.int64).max).all()
    graph.replay()
    assert torch.equal(x, before * 2) and count.item() == 1
    assert not noisy.isnan().any() and constant.item() == 1.5 and index.max() < 6


def test_operators_of_other_libraries_do_not_run_during_capture(backend: ReferenceBackend, x: torch.Tensor) -> None:
    calls = []

    @torch.library.custom_op("grape_test::noted", mutates_args=())
    def noted(value: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return value * 3

    with pytest.raises(CaptureFailed, match=r"noted\.default cannot be captured") as caught:
        backend.capture(lambda: noted(x))
    assert caught.value.code == "GR405"
    noted.register_fake(torch.empty_like)
    graph, out = backend.capture(lambda: noted(x))
    assert calls == []
    graph.replay()
    assert calls == [1] and torch.equal(out, x * 3)


def test_an_exception_of_the_body_leaves_nothing_behind(backend: ReferenceBackend, x: torch.Tensor) -> None:
    error = KeyError("mine")

    def body() -> None:
        held = x * 2
        del held
        raise error

    before = torch.Tensor.tolist
    for _ in range(3):
        with pytest.raises(KeyError) as caught:
            backend.capture(body)
        assert caught.value is error
        error.__traceback__ = None
        del caught
    assert _get_current_dispatch_mode_stack() == []
    assert torch.Tensor.tolist is before and x.tolist()
    pool = backend.memory().pool_bytes
    graph, out = backend.capture(lambda: x * 2)
    assert backend.memory().pool_bytes == pool, "the block of the failed captures is used again"
    graph.replay()
    assert torch.equal(out, x * 2)


def test_an_interrupt_leaves_nothing_behind(backend: ReferenceBackend, x: torch.Tensor) -> None:
    def body() -> None:
        torch.dropout(x, 0.5, True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backend.capture(body)
    assert _get_current_dispatch_mode_stack() == []
    backend.capture(lambda: x * 2)[0].replay()


def test_wrong_arguments_raise_what_an_eager_call_raises(backend: ReferenceBackend, x: torch.Tensor) -> None:
    with pytest.raises(RuntimeError) as eager:
        torch.mm(x, x)
    with pytest.raises(RuntimeError) as captured:
        backend.capture(lambda: torch.mm(x, x))
    assert str(captured.value) == str(eager.value)


def test_a_capture_inside_a_capture_is_refused(backend: ReferenceBackend, x: torch.Tensor) -> None:
    with pytest.raises(CaptureFailed, match="already running"):
        backend.capture(lambda: backend.capture(lambda: x * 2))
    backend.capture(lambda: x * 2)


def test_other_threads_may_read_values_during_a_capture(backend: ReferenceBackend, x: torch.Tensor) -> None:
    values: list[Any] = []

    def body() -> torch.Tensor:
        thread = threading.Thread(target=lambda: values.append((x.tolist(), x.sum().item())))
        thread.start()
        thread.join()
        return x * 2

    backend.capture(body)
    assert values == [(x.tolist(), x.sum().item())]


def test_metadata_is_not_a_host_read(backend: ReferenceBackend, x: torch.Tensor) -> None:
    def body() -> torch.Tensor:
        y = x.t()
        assert y.shape == (6, 4) and y.is_same_size(torch.empty(6, 4)) and not y.is_contiguous()
        return y.reshape(-1)

    graph, out = backend.capture(body)
    graph.replay()
    assert graph.nodes == 1, "the transpose is no node, the copy of reshape is"
    assert torch.equal(out, x.t().reshape(-1))


WITH_A_KERNEL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": lambda x: torch.nn.functional.silu(x),
    "mish": lambda x: torch.nn.functional.mish(x),
}


@pytest.mark.parametrize("name", WITH_A_KERNEL)
def test_what_is_made_of_others_elsewhere_keeps_the_kernel_that_it_has_here(
    backend: ReferenceBackend, name: str
) -> None:
    function = WITH_A_KERNEL[name]
    with torch.inference_mode(False), torch.enable_grad():
        base = torch.randn(64, 96)

        def run() -> torch.Tensor:
            x = base.clone().requires_grad_()
            return torch.autograd.grad(function(x).sin().sum(), x)[0]

        graph, gradient = backend.capture(run)
        base.copy_(torch.randn(64, 96))
        graph.replay()
        assert torch.equal(gradient, run())
