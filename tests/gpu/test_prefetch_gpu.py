"""`grape.prefetch` on a GPU: the batches of plain loops, every way to copy, memory that is used at once again."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import grape
from grape.runtime import prefetch as module

pytestmark = pytest.mark.gpu

ROWS = TensorDataset(torch.randn(512, 4096), torch.arange(512))


@pytest.fixture(params=[False, True], ids=["same stream", "side stream"], autouse=True)
def side_stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(module, "SIDE_STREAM", request.param)
    return bool(request.param)


def reused(count: int = 40) -> Iterator[torch.Tensor]:
    """One pinned buffer, written again for each batch."""
    buffer = torch.empty(1 << 20, pin_memory=True)
    for number in range(count):
        buffer.fill_(number)
        yield buffer


LOADERS: dict[str, Callable[[], Iterable[Any]]] = {
    "pinned": lambda: DataLoader(ROWS, batch_size=32, shuffle=True, pin_memory=True),
    "pageable": lambda: DataLoader(ROWS, batch_size=32, shuffle=True),
    "workers": lambda: DataLoader(ROWS, batch_size=32, shuffle=True, num_workers=2, pin_memory=True),
    "workers, pageable": lambda: DataLoader(ROWS, batch_size=32, num_workers=2),
    "one buffer": reused,
    "transposed and empty": lambda: [{"a": torch.randn(64, 32).t(), "b": torch.empty(0), "c": "name"}] * 9,
    "with gradients": lambda: [torch.ones(8, requires_grad=True) for _ in range(5)],
    "on the device already": lambda: [torch.randn(8, device="cuda") for _ in range(5)],
}


def moved(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to("cuda")
    if isinstance(batch, dict):
        return {key: moved(value) for key, value in batch.items()}
    return [moved(item) for item in batch] if isinstance(batch, (list, tuple)) else batch


def leaves(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    items = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    return [leaf for item in items for leaf in leaves(item)]


def busy(weight: torch.Tensor) -> None:
    """Work that the device is not done with when the loop goes on."""
    for _ in range(10):
        weight = torch.tanh(weight @ weight)


@pytest.mark.parametrize("name", LOADERS)
def test_the_same_batches_while_the_device_is_busy(name: str) -> None:
    weight = torch.randn(2048, 2048, device="cuda")
    seen: list[list[torch.Tensor]] = []
    for batches in (lambda: map(moved, LOADERS[name]()), lambda: grape.prefetch(LOADERS[name](), "cuda")):
        torch.manual_seed(0)
        kept = []
        for number, batch in enumerate(batches()):
            for leaf in leaves(batch):
                assert leaf.is_cuda
                kept.append(leaf.double().sum())
                kept.append(leaf.detach().clone())
                leaf.detach().fill_(-1)  # what lies there is the loop's
            busy(weight)
            del batch
            torch.empty(1 << 22, device="cuda").fill_(float("nan"))  # memory of dead batches is used again
            if number == 12:
                break
        kept.append(torch.rand(4))
        seen.append([tensor.cpu() for tensor in kept])
    assert len(seen[0]) == len(seen[1])
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))


def test_batches_belong_to_the_stream_that_asks() -> None:
    stream = torch.cuda.Stream()
    total = torch.zeros((), device="cuda", dtype=torch.float64)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for x, _ in grape.prefetch(DataLoader(ROWS, batch_size=16, pin_memory=True), "cuda"):
            busy(torch.randn(1024, 1024, device="cuda"))
            total += x.double().sum()
    torch.cuda.current_stream().wait_stream(stream)
    assert float(total) == pytest.approx(float(ROWS.tensors[0].double().sum()), rel=1e-12)


def test_the_cpu_does_not_wait() -> None:
    """A pageable copy waits for all that the device has to do; these do not."""
    weight = torch.randn(8192, 8192, device="cuda")
    batches = iter(grape.prefetch([torch.randn(1 << 16) for _ in range(4)], "cuda"))
    next(batches)
    busy(weight)
    done = torch.cuda.Event()
    done.record()
    x = next(batches)
    assert not done.query(), "the device was done before the copy was asked for"
    assert x.is_cuda


def test_under_graphs_of_grape() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4096, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8)).cuda().eval()
    step = grape.graph(lambda x: net(x).softmax(-1))
    loader = DataLoader(ROWS, batch_size=16, num_workers=1, pin_memory=True)
    with torch.no_grad():
        for _ in range(3):
            for x, _ in grape.prefetch(loader, "cuda"):
                got = step(x)
                assert torch.equal(got, net(x).softmax(-1))
    step.release()


def test_a_worker_does_not_collect_what_its_parent_left() -> None:
    """An event that is destroyed where there is no device ends the process."""
    next(iter(grape.prefetch(DataLoader(ROWS, batch_size=16), "cuda")))
    gc.collect()
    gc.disable()
    try:
        event = torch.cuda.Event()
        event.record()
        left: list[Any] = [event]
        left.append(left)
        del event, left
        child = os.fork()
        if not child:
            gc.collect()
            os._exit(0)
        _, status = os.waitpid(child, 0)
    finally:
        gc.enable()
    assert os.waitstatus_to_exitcode(status) == 0
