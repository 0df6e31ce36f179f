"""Random loops of several ranks: each has statements of its own, and all have the same collectives between them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.property.rank_exchanges import Exchanges
from tests.property.stream_programs import Statement, flat


class Heads(nn.Module):
    """Data decide which parameters a pass uses, where that is allowed."""

    def __init__(self, width: int, dropout: float, chooses: bool) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout), nn.LayerNorm(width))
        self.heads = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])
        self.chooses = chooses

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        if self.chooses:
            return self.heads[int(x.sum().item() > 0)](h)  # type: ignore[no-any-return]
        return self.heads[0](h) + self.heads[1](h).sin()  # type: ignore[no-any-return]


def hook_with_callback(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Averages gradients, the last step of it on the thread of the backend."""
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    scale = torch.ones(1) / dist.get_world_size()
    return future.then(lambda done: done.value()[0] * scale)


hook_with_callback.__annotations__ |= {"bucket": dist.GradBucket, "return": torch.futures.Future[Tensor]}  # DDP checks


class RankProgram(Exchanges):
    """A program of one seed is another one on each rank, but for its collectives."""

    def _make(self, r: Any, seed: int) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.random = random.Random(f"{seed} {self.rank}")
        super()._make(r, seed)
        self.shared = c = random.Random(f"{seed} of all")
        pair = sorted(c.sample(range(self.world), 2))
        self.pair = dist.new_group(pair) if self.world > 2 else dist.group.WORLD
        self.flat = torch.zeros(64)
        self.models: list[tuple[nn.Module, torch.optim.Optimizer]] = []
        torch.manual_seed(seed)
        kinds: dict[Callable[[], Statement], int] = {
            self.reduce: 8, self.gather: 6, self.scatter: 5, self.broadcast: 3, self.messages: 5, self.swap: 3,
            self.asynchronous: 6, self.callback: 4, self.slices: 4, self.functional: 5, self.differentiable: 3,
            self.coalesced: 3, self.subgroup: 4, self.objects: 2, self.wrong: 2, self.sharded: 2,
        }  # fmt: skip
        body = c.choices(list(kinds), list(kinds.values()), k=c.randint(1, 5))
        if c.random() < 0.4:
            body.insert(c.randrange(len(body)), self.ddp)
        if c.random() < 0.15:
            body.append(self.fsdp)
        self.body = [statement for kind in body for statement in (self.local(), self.often(kind()))]
        torch.manual_seed(seed + self.rank)
        self.s.xs.add_(0.1 * self.rank)

    def run(self, iterations: int) -> None:
        for i in range(iterations):
            for statement in self.body:
                statement(i)

    def result(self) -> list[Any]:
        def whole(t: Tensor) -> Tensor:
            return t.to_local() if hasattr(t, "to_local") else t  # type: ignore[no-any-return]

        mine: list[Any] = [self.flat]
        for model, optimizer in self.models:
            mine += [whole(p) for p in (*model.parameters(), *model.buffers())]
            mine += [whole(p.grad) for p in model.parameters() if p.grad is not None]
            mine += [whole(v) for state in optimizer.state.values() for v in state.values() if torch.is_tensor(v)]
        return super().result() + flat(mine)

    def often(self, exchange: Statement) -> Statement:
        """At each iteration, at some of them, or several times in one."""
        every, times = self.shared.choice([1, 1, 1, 2, 5]), self.shared.choice([1, 1, 1, 2])

        def statement(i: int) -> None:
            for _ in range(times if i % every == 0 else 0):
                exchange(i)

        return statement

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        kind = self.shared.choice([torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW])
        foreach = self.shared.choice([True, False])
        return kind(model.parameters(), lr=0.02, foreach=foreach)

    def ddp(self) -> Statement:
        c = self.shared
        finds, static = c.random() < 0.4, c.random() < 0.3
        view, hook, clip = c.random() < 0.5, c.choice([None, None, "callback"]), c.random() < 0.3
        none, micro, read = c.random() < 0.5, c.choice([1, 1, 2, 3]), c.random() < 0.4
        inner = Heads(self.width, c.choice([0.0, 0.3]), chooses=finds and not static)
        model = DistributedDataParallel(
            inner,
            find_unused_parameters=finds,
            static_graph=static,
            gradient_as_bucket_view=view,
            bucket_cap_mb=c.choice([25, 0.0001]),  # type: ignore[arg-type]
        )
        if hook:
            model.register_comm_hook(None, hook_with_callback)
        optimizer = self.optimizer(model)
        self.models.append((model, optimizer))
        micro = 1 if static else micro

        def statement(i: int) -> None:
            optimizer.zero_grad(set_to_none=none)
            for k in range(micro):
                with model.no_sync() if k + 1 < micro else contextlib.nullcontext():
                    x = self.s.xs[(i + k) % self.batches].nan_to_num().clamp(-9, 9) + 0.1 * self.plain("h").nan_to_num()
                    loss = model(x).square().mean()
                    loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            self.s.values["loss"] = loss.detach()
            if read and i % self.world == self.rank:
                self.s.log.append(loss.item())

        return statement

    def fsdp(self) -> Statement:
        model = nn.Sequential(nn.Linear(self.width, 8), nn.Tanh(), nn.Linear(8, self.width))
        mesh = dist.init_device_mesh("cpu", (self.world,))
        for part in (model[0], model[2], model):
            fully_shard(part, mesh=mesh)
        optimizer = self.optimizer(model)
        self.models.append((model, optimizer))

        def statement(i: int) -> None:
            optimizer.zero_grad()
            x = self.s.xs[i % self.batches].nan_to_num().clamp(-9, 9)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            self.s.values["loss"] = loss.detach()

        return statement
