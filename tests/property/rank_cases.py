"""What several ranks do that random programs do seldom: each returns what it leaves."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import AllgatherOptions, AllreduceCoalescedOptions
from torch.distributed.algorithms import Join
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

STEPS = 30


def mlp(width: int = 8, depth: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(width, width))


def batch(step: int, width: int = 8) -> Tensor:
    return torch.randn(4, width, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))


def trained(model: Any, optimizer: Any, loss_of: Callable[[int], Tensor], steps: int = STEPS) -> list[Any]:
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return [*model.state_dict().values(), *losses]


def slow_collective(x: Tensor) -> Any:
    """It ends while the first rank is behind it."""
    if dist.get_rank() == 1:
        time.sleep(0.004)
    return dist.all_reduce(x, async_op=True)


def in_flight(other: Callable[[Tensor], Tensor]) -> list[Any]:
    """Half of a tensor is exchanged while operators change the other half, among them one that takes long."""
    kept, large = [], torch.randn(300, 300)
    base = torch.ones(256)
    for step in range(STEPS):
        x = base * 1.0 + dist.get_rank()
        kept.append(x)  # so that the next one lies elsewhere
        x.sum().item()
        work = slow_collective(x[:128])
        rest = other(x)
        rest.add_(1)
        for _ in range(4):
            large = (large @ large).tanh()
        rest.mul_(0.5)
        rest.sum().item()
        work.wait()
        x.mul_(0.5).add_(0.25)
        kept.append(x.sum().item() + step)
    return [kept, large]


def beside_what_is_in_flight() -> list[Any]:
    return in_flight(lambda x: x[128:])


def around_what_is_in_flight() -> list[Any]:
    """Columns and strided elements of the other half, and its first element alone."""
    columns = in_flight(lambda x: x[128:].view(16, 8)[:, 2:5])
    return columns + in_flight(lambda x: x[128::3]) + in_flight(lambda x: x[200])


def _callbacks(how: str) -> list[Any]:
    left, a, other = [], torch.ones(64) * (1 + dist.get_rank()), torch.ones(64)
    for step in range(STEPS):
        y = a * 1.5
        future = slow_collective(y).get_future()
        scale = (a * 0.25 + step % 3).tanh()
        got: list[Tensor] = []

        def write(done: Any, scale: Tensor = scale) -> Tensor:
            other.add_(1)
            return done.value()[0] * scale  # type: ignore[no-any-return]

        if how == "then":
            z = future.then(lambda done, scale=scale: done.value()[0] * scale).wait()
        elif how == "write":
            before = other * 2
            z = future.then(write).wait() + before
        else:
            future.add_done_callback(lambda done, got=got, scale=scale: got.append(done.value()[0] * scale))
            while not got:
                time.sleep(0.0005)
            z = got[0]
        a = (a + 0.01 * z).clamp(-2, 2)
        left += [z.clone(), a]
    return [left, other]


def a_callback_that_reads() -> list[Any]:
    return _callbacks("then")


def a_callback_that_writes() -> list[Any]:
    return _callbacks("write")


def a_callback_for_its_effect() -> list[Any]:
    return _callbacks("done")


def views_of_one_bucket() -> list[Any]:
    """A list of them has one version counter."""
    model = DistributedDataParallel(mlp(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, foreach=True)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        model(batch(step)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
    return [[p, p.grad] for p in model.parameters()]


def a_backend_by_itself() -> list[Any]:
    """Its methods are no operators."""
    assert dist.group.WORLD is not None
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
    world, rank, left = dist.get_world_size(), dist.get_rank(), []
    a = torch.ones(16) * (rank + 1)
    for step in range(STEPS):
        y = (a * 0.5).tanh()
        backend.allreduce([y]).wait()
        parts = [[torch.empty(16) for _ in range(world)]]
        backend.allgather(parts, [y * (rank + 1)]).wait()
        z = torch.stack(parts[0]).sum(0)
        backend.broadcast([z], dist.BroadcastOptions()).wait()
        out = z * 0.1
        backend.reduce_scatter([out], [[z + k for k in range(world)]], dist.ReduceScatterOptions()).wait()
        into = torch.empty(world * 16)
        backend._allgather_base(into, out, AllgatherOptions()).wait()
        sent, got = out + 1, torch.empty(16)
        works = [backend.send([sent], (rank + 1) % world, step), backend.recv([got], (rank - 1) % world, step)]
        for work in works:
            work.wait()
        many = [got * 2, out * 3]
        backend.allreduce_coalesced(many, AllreduceCoalescedOptions()).wait()
        a = (into[:16] * 0.1 + got + many[0] - many[1]).clamp(-2, 2)
        left.append(a)
    return left


def comm_hooks() -> list[Any]:
    left: list[Any] = []
    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook, powerSGD_hook.powerSGD_hook):
        model: Any = DistributedDataParallel(mlp(16))
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        power = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=4, min_compression_rate=0.5)
        model.register_comm_hook(power if hook is powerSGD_hook.powerSGD_hook else None, hook)
        left += trained(model, optimizer, lambda step, model=model: model(batch(step, 16)).square().mean())
    return left


def zero_redundancy() -> list[Any]:
    model = DistributedDataParallel(mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    left = trained(model, optimizer, lambda step: model(batch(step)).square().mean())
    optimizer.consolidate_state_dict(0)
    flat = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.01, parameters_as_bucket_view=True)
    return left + trained(model, flat, lambda step: model(batch(step)).square().mean())


def uneven_inputs() -> list[Any]:
    """Ranks that have no batch any more shadow the collectives of those that have."""
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    left: list[Any] = []
    for length in (STEPS, 3):
        with Join([model]):
            left += trained(model, optimizer, lambda s: model(batch(s)).square().mean(), length + 2 * dist.get_rank())
        dist.barrier()
    return left


def averaged_models() -> list[Any]:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    averager = PeriodicModelAverager(period=4, warmup_steps=3)

    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    return [*model.parameters()]


def pipelines() -> list[Any]:
    left: list[Any] = []
    rank, world = dist.get_rank(), dist.get_world_size()
    for kind in (ScheduleGPipe, Schedule1F1B):
        torch.manual_seed(rank)
        part = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        stage = PipelineStage(part, rank, world, torch.device("cpu"))
        schedule = kind(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
        optimizer = torch.optim.Adam(part.parameters(), 0.01)
        for step in range(12):
            x = torch.randn(8, 8, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            losses: list[Tensor] = []
            if rank == 0:
                schedule.step(x)
            elif rank == world - 1:
                left.append(schedule.step(target=x * 0.5, losses=losses))
            else:
                schedule.step()
            left.append([loss.detach() for loss in losses])
            optimizer.step()
        left.append(part.state_dict())
    return left


def checkpointed() -> list[Any]:
    left: list[Any] = []
    for reentrant, static in itertools.product((False, True), (False, True)):
        inner = mlp()
        model: Any = DistributedDataParallel(Checkpointed(inner, reentrant), static_graph=static)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        left += trained(model, optimizer, lambda step, model=model: model(batch(step)).square().mean())
    return left


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Sequential, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner[0](x)
        h = checkpoint(lambda h: nn.functional.dropout(self.inner[1](h), 0.2), h, use_reentrant=self.reentrant)
        return self.inner[2:](h)  # type: ignore[no-any-return]


def distributed_tensors() -> list[Any]:
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    w = distribute_tensor(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)), mesh, [Shard(0)])
    w.requires_grad_()
    left: list[Any] = []
    for step in range(STEPS):
        x = distribute_tensor(torch.full((4, 8), 0.1 * (step % 5)), mesh, [Replicate()])
        loss = (x @ w.t()).tanh().redistribute(mesh, [Replicate()]).to_local().square().mean()
        loss.backward()
        with torch.no_grad():
            assert w.grad is not None
            w -= 0.1 * w.grad
            w.grad = None
        left += [loss.detach(), w.detach().full_tensor()]
    return left


def objects() -> list[Any]:
    left, a = [], torch.ones(8) * dist.get_rank()
    for step in range(STEPS):
        y = a.sin() + step % 3
        got: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(got, {"y": y, "step": step})
        z = got[-1]["y"] * 0.5
        sent = [z * 2 if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(sent, 0)
        a = (z + sent[0]).clamp(-2, 2)
        left.append(a)
    return left


def threads_with_collectives() -> list[Any]:
    """A thread of the person's exchanges what the main thread has computed."""
    group, left, a = dist.new_group(), [], torch.ones(16) * dist.get_rank()

    def exchange(x: Tensor) -> None:
        dist.all_reduce(x, group=group)

    for _ in range(STEPS):
        y = (a * 0.5).cos()
        thread = threading.Thread(target=exchange, args=(y,))
        thread.start()
        z = a * 2
        thread.join()
        a = (y + z).clamp(-2, 2)
        left.append(a)
    return left


def a_long_pipeline_of_works() -> list[Any]:
    """Many are in flight, of results that nobody but they hold."""
    left, a = [], torch.ones(32) * dist.get_rank()
    works: list[tuple[Any, Tensor]] = []
    for step in range(3 * STEPS):
        x = (a * 0.5 + step % 4).tanh()
        gathered = torch.empty(dist.get_world_size() * 32)
        works.append((dist.all_gather_into_tensor(gathered, x * 2, async_op=True), gathered))
        del x
        a = (a * 0.9 + 0.1).clamp(-2, 2)
        if len(works) > 5:
            work, done = works.pop(0)
            work.wait()
            a = a + 0.01 * done[:32]
            left.append(done.sum().item())
    for work, done in works:
        work.wait()
        left.append(done)
    return [left, a]
