"""One rank of a process group, run as a process of its own by test_distributed.py: trains plainly and under Grape.

`python -m tests.integration.distributed_ranks RANK WORLD STORE` prints what differs, one line each, and `done`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import grape

STEPS = 60
Numbers = list[torch.Tensor]


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def batch(step: int) -> torch.Tensor:
    """Each rank has data of its own, so that ranks agree only where gradients were exchanged."""
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))


def full(model: nn.Module) -> Numbers:
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return [p.detach().clone() for p in whole]


def _with_optimizer(model: nn.Module, step: Callable[[Any, int], torch.Tensor]) -> Numbers:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for number in range(STEPS):
        optimizer.zero_grad()
        loss = step(model, number)
        optimizer.step()
        losses.append(loss.detach().clone())
    return [*full(model), *losses]


def ddp() -> Numbers:
    def step(model: Any, number: int) -> torch.Tensor:
        loss = model(batch(number)).square().mean()
        loss.backward()
        return loss

    return _with_optimizer(DistributedDataParallel(make_model()), step)


def whole_step_of_ddp() -> Numbers:
    """The step as one function, as a region would hold it."""
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step_of = grape.graph(step, device="cpu") if UNDER_GRAPE else step
    losses = [step_of(batch(number)).clone() for number in range(STEPS)]
    return [*full(model), *losses]


def inner_module_of_ddp() -> Numbers:
    """The wrapped module is called by itself; its parameters have the reducer's hooks all the same."""
    inner = make_model()
    model = DistributedDataParallel(inner)

    def step(_: Any, number: int) -> torch.Tensor:
        (model if number % 2 else inner)(batch(number)).square().mean().backward()
        return inner(batch(number)).sum()

    return _with_optimizer(model, step)


def no_sync() -> Numbers:
    def step(model: Any, number: int) -> torch.Tensor:
        with model.no_sync():
            model(batch(number)).square().mean().backward()
        loss = model(batch(number + 1)).square().mean()
        loss.backward()
        return loss

    return _with_optimizer(DistributedDataParallel(make_model()), step)


def fsdp() -> Numbers:
    model = make_model()
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)

    def step(model: Any, number: int) -> torch.Tensor:
        loss = model(batch(number)).square().mean()
        loss.backward()
        return loss

    return _with_optimizer(model, step)


def all_reduce() -> Numbers:
    model = make_model()

    def step(x: torch.Tensor) -> torch.Tensor:
        y = model(x).mean(0)
        dist.all_reduce(y)
        return y.tanh() * 2 + y

    with torch.no_grad():
        return [step(batch(number)).clone() for number in range(STEPS)]


def tensor_parallel() -> Numbers:
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(make_model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
    losses = []
    for number in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(6, 4, generator=torch.Generator().manual_seed(number))).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return [*full(model), *losses]


def collectives() -> Numbers:
    """Of several kinds, one of them behind work that goes on meanwhile, and one of the backend by itself."""
    model, world = make_model(), dist.get_world_size()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    seen = []
    with torch.no_grad():
        for number in range(STEPS):
            y = model(batch(number)).mean(0)
            work = dist.all_reduce(y, async_op=True)
            meanwhile = (model(batch(number + 1)) * 3).relu().sum(0)
            work.wait()
            parts = [torch.empty_like(y) for _ in range(world)]
            dist.all_gather(parts, y * meanwhile)
            total = torch.stack(parts).sum(0)
            dist.broadcast(total, src=number % world)
            scaled = total * 2
            backend.allreduce([scaled]).wait()
            seen.append(scaled.tanh() + y)
    return seen


UNDER_GRAPE = False
KINDS = (ddp, whole_step_of_ddp, inner_module_of_ddp, no_sync, fsdp, all_reduce, tensor_parallel, collectives)
REGIONS = (ddp, all_reduce)
"""What is tried with regions as well, which stand aside."""


def replays(call: Callable[[torch.Tensor], torch.Tensor]) -> int:
    """Replays of a model without collectives in one session."""
    with torch.no_grad(), grape.session() as session:
        for number in range(24):
            call(torch.full((6, 4), float(number)))
    assert session.report is not None
    return sum(region.replays for region in session.report.regions)


def main(rank: int, world: int, store: str) -> None:
    global UNDER_GRAPE
    torch.set_num_threads(1)
    kept = make_model()
    before = replays(kept)
    if not before:
        print("nothing was captured before the group, so nothing shows that it stops")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    if replays(kept):
        print("a graph from before the group served while it existed")
    for kind in KINDS if world == 2 else (ddp, all_reduce, collectives):  # a process for each rank is slow to start
        UNDER_GRAPE = False
        plain = kind()
        UNDER_GRAPE = True
        for engine in ("auto", "regions") if kind in REGIONS else ("auto",):
            with grape.session(engine=engine) as session:
                seen = kind()
            if not all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True)):
                print(f"{kind.__name__}, {engine}: other numbers")
            report = session.report
            assert report is not None
            served = sum(stream.matched for stream in report.evidence.streams)
            replayed = any(region.replays for region in report.regions)
            aside = "process group" in report.verdict
            if replayed or (engine == "auto") != (served > 0) or (engine == "regions") != aside:
                print(f"{kind.__name__}, {engine}: {report.verdict}")
    dist.barrier()
    dist.destroy_process_group()
    if not replays(kept):
        print("nothing replays after the group")
    print("done")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
