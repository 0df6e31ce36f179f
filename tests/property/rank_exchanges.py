"""What ranks exchange in random programs."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional
from torch.distributed.nn import functional as differentiable
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from tests.property.stream_programs import TENSORS, Program, Statement, Stop

LOCAL = (Stop, KeyboardInterrupt, RuntimeError, IndexError, ValueError)
"""What a rank raises and catches between two collectives, while the others go on."""


class Exchanges(Program):
    """Statements in which all ranks take part, or all of a subgroup."""

    rank: int
    world: int
    shared: random.Random
    pair: Any
    flat: Tensor

    def local(self) -> Statement:
        """What this rank does by itself."""
        inside = self.block(1)

        def statement(i: int) -> None:
            try:
                for other in inside:
                    other(i)
            except LOCAL as error:
                self.s.log.append(f"{type(error).__name__} {error}"[:120])

        return statement

    def plain(self, name: str) -> Tensor:
        """The value, or a copy that a collective takes: dense, no inference tensor, of all ranks' size."""
        t = self.get(name)
        if t.shape != (self.batch, self.width) or t.dtype != torch.float32:
            return torch.full((self.batch, self.width), 0.5)
        return t if t.is_contiguous() and not t.is_inference() else t.clone(memory_format=torch.contiguous_format)

    def names(self) -> tuple[str, str]:
        return self.shared.choice(TENSORS), self.shared.choice(TENSORS)

    def take(self, name: str, value: Tensor) -> None:
        self.s.values[name] = value.detach().reshape(self.batch, self.width).clamp(-3, 3)

    def reduce(self) -> Statement:
        op = self.shared.choice([dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.AVG])
        (a, b), to, read = self.names(), self.shared.choice([None, 0, 1]), self.shared.random() < 0.3

        def statement(_: int) -> None:
            x = self.plain(a)
            if to is None:
                dist.all_reduce(x, op=op)
            else:
                dist.reduce(x, to, op=op)
            x.mul_(0.5)
            self.take(b, x + 0.1)
            if read:
                self.s.log.append(x.sum().item())

        return statement

    def gather(self) -> Statement:
        (a, b), q, n = self.names(), self.shared.randrange(4), self.world

        def statement(i: int) -> None:
            x = self.plain(a) if q % 2 else self.plain(a).tanh()
            parts = [torch.empty_like(x) for _ in range(n)]
            if q == 0:
                dist.all_gather(parts, x)
            elif q == 1:
                into = torch.empty(n * self.batch, self.width)
                dist.all_gather_into_tensor(into, x)
                parts = list(into.chunk(n))
            elif q == 2:
                to = i % n
                dist.gather(x, parts if self.rank == to else None, dst=to)
                parts = parts if self.rank == to else [x] * n
            else:
                into = torch.zeros(n, *x.shape)
                dist.all_gather(list(into.unbind(0)), x)
                parts = list(into.unbind(0))
            self.take(b, torch.stack(parts).mean(0))
            self.s.recent.append(parts[-1])

        return statement

    def scatter(self) -> Statement:
        (a, b), q, n = self.names(), self.shared.randrange(5), self.world

        def statement(i: int) -> None:
            x = self.plain(a)
            whole = torch.stack([x * (k + 1) for k in range(n)])
            out = torch.empty_like(x)
            if q == 0:
                dist.reduce_scatter(out, list(whole.unbind(0)))
            elif q == 1:
                dist.reduce_scatter_tensor(out, whole.flatten(0, 1))
            elif q == 2:
                dist.scatter(out, list(whole.unbind(0)) if self.rank == i % n else None, src=i % n)
            elif q == 3:
                parts = [torch.empty_like(x) for _ in range(n)]
                dist.all_to_all(parts, list(whole.unbind(0)))
                out = sum(parts[1:], parts[0])
            else:
                into = torch.empty_like(whole)
                dist.all_to_all_single(into, whole)
                out = into[0] - into[-1]
            self.take(b, out * 0.25)

        return statement

    def broadcast(self) -> Statement:
        (a, b), source = self.names(), self.shared.choice([None, 0])

        def statement(i: int) -> None:
            x = self.plain(a)
            dist.broadcast(x, i % self.world if source is None else source)
            self.take(b, x.sin())

        return statement

    def messages(self) -> Statement:
        """From each rank to the next."""
        (a, b), q, n = self.names(), self.shared.randrange(3), self.world
        meanwhile = self.local()

        def statement(i: int) -> None:
            x, got = self.plain(a) * 0.5, torch.zeros(self.batch, self.width)
            after, before = (self.rank + 1) % n, (self.rank - 1) % n
            if q == 0 and self.rank % 2 == 0 and n % 2 == 0:
                dist.send(x, after)
                dist.recv(got, before)
            elif q == 0 and n % 2 == 0:
                dist.recv(got, before)
                dist.send(x, after)
            elif q < 2:
                works = [dist.isend(x, after), dist.irecv(got, before)]
                meanwhile(i)
                seen = x * 2  # which is still sent
                for work in works:
                    work.wait()
                self.s.recent.append(seen)
            else:
                pending = [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, got, before)]
                works = dist.batch_isend_irecv(pending)
                meanwhile(i)
                for work in works:
                    work.wait()
            self.take(b, got + x)

        return statement

    def swap(self) -> Statement:
        dtype = self.shared.choice([torch.float64, torch.bfloat16, torch.int64])
        (a, b) = self.names()

        def statement(_: int) -> None:
            x = (self.plain(a).nan_to_num() * 4).to(dtype)
            dist.all_reduce(x, op=dist.ReduceOp.MAX)
            dist.barrier()
            self.take(b, x.float() * 0.25)

        return statement

    def asynchronous(self) -> Statement:
        (a, b), q = self.names(), self.shared.randrange(3)
        meanwhile, count = self.local(), self.shared.choice([1, 2, 3])

        def statement(i: int) -> None:
            sent = [self.plain(a) * (k + 1) for k in range(count)]
            parts = [[torch.empty_like(x) for _ in range(self.world)] for x in sent]
            if q == 0:
                works = [dist.all_reduce(x, async_op=True) for x in sent]
            elif q == 1:
                works = [dist.all_gather(p, x, async_op=True) for p, x in zip(parts, sent, strict=True)]
            else:
                works = [dist.broadcast(x, i % self.world, async_op=True) for x in sent]
            meanwhile(i)
            if q == 1:
                self.s.recent.append(sent[0] + 1)  # read by the collective, too
            for work in reversed(works):
                work.wait()
            made = sent if q != 1 else [p[-1] for p in parts]
            self.take(b, torch.stack(made).sum(0) * 0.2)

        return statement

    def callback(self) -> Statement:
        """On the backend's thread, with what was computed behind the start of the collective."""
        (a, b), done = self.names(), self.shared.random() < 0.3

        def statement(i: int) -> None:
            x = self.plain(a) * 0.5
            future = dist.all_reduce(x, async_op=True).get_future()
            scale = (self.plain(b) * 0.1).tanh()
            kept: list[Tensor] = []
            if done:
                future.add_done_callback(lambda f: kept.append(f.value()[0] * scale))
            last = future.then(lambda f: f.value()[0] + scale)
            self.take(a, last.wait() + (kept[0] if kept else 0))

        return statement

    def slices(self) -> Statement:
        """One part of a tensor is exchanged while the other changes, and is read."""
        step, made = self.shared.choice([1, 2]), self.shared.random() < 0.5
        (a, _) = self.names()

        def statement(i: int) -> None:
            self.flat = self.flat * 0.5 if made else self.flat
            x = self.flat
            x.add_(self.plain(a).nan_to_num().mean())
            work = dist.all_reduce(x[:32], async_op=True)
            rest = x[32::step]
            rest.add_(0.5).clamp_(-2, 2)
            self.s.log.append(rest.sum().item())
            rest.mul_(0.5)
            work.wait()
            x.clamp_(-2, 2)

        return statement

    def functional(self) -> Statement:
        (a, b), q, late = self.names(), self.shared.randrange(4), self.local()

        def statement(i: int) -> None:
            x, group = self.plain(a) * 1.0, dist.group.WORLD
            assert group is not None
            if q == 0:
                y = functional.all_reduce(x, "sum", group)
            elif q == 1:
                y = functional.all_gather_tensor(x, 0, group)
            elif q == 2:
                y = functional.reduce_scatter_tensor(torch.cat([x] * self.world), "sum", 0, group)
            else:
                y = functional.broadcast(x * 2, i % self.world, group)
            if i % 2:
                late(i)
            y = y * 0.5
            self.take(b, y[: self.batch])

        return statement

    def differentiable(self) -> Statement:
        (a, b) = self.names()

        def statement(_: int) -> None:
            x = self.plain(a).clone().requires_grad_()
            y = differentiable.all_reduce(x.tanh())
            (y * y).mean().backward()
            assert x.grad is not None
            self.take(b, x.grad * 4)

        return statement

    def coalesced(self) -> Statement:
        (a, b), later = self.names(), self.shared.random() < 0.5

        def statement(_: int) -> None:
            x, y = self.plain(a) * 0.5, self.plain(b) + 1
            with dist._coalescing_manager(async_ops=later) as manager:
                dist.all_reduce(x)
                dist.all_reduce(y)
            if later:
                self.s.recent.append(self.get(a) * 3)
                manager.wait()
            self.take(b, x * y)

        return statement

    def subgroup(self) -> Statement:
        (a, b), later = self.names(), self.shared.random() < 0.5

        def statement(_: int) -> None:
            if dist.get_rank(self.pair) < 0:
                return
            x = self.plain(a) * 0.5
            work = dist.all_reduce(x, group=self.pair, async_op=later)
            if work is not None:
                work.wait()
            self.take(b, x)

        return statement

    def objects(self) -> Statement:
        (a, _), q = self.names(), self.shared.randrange(2)

        def statement(i: int) -> None:
            x = self.plain(a)
            if q == 0:
                got: list[Any] = [None] * self.world
                dist.all_gather_object(got, (self.rank, x))
                self.s.recent.append([t for _, t in got])
            else:
                sent = [x, i] if self.rank == 0 else [None, None]
                dist.broadcast_object_list(sent, 0)
                self.s.recent.append(sent)

        return statement

    def wrong(self) -> Statement:
        """Raises before anything is sent, on all ranks."""
        q = self.shared.randrange(2)

        def statement(_: int) -> None:
            x = self.plain("a")
            try:
                if q == 0:
                    dist.all_gather([x], torch.cat([x, x]))
                else:
                    dist.all_reduce(x.to_sparse(), op=dist.ReduceOp.PRODUCT)
            except (RuntimeError, ValueError) as error:
                self.s.log.append(f"{type(error).__name__} {error}"[:200])

        return statement

    def sharded(self) -> Statement:
        (a, b), dim = self.names(), self.shared.randrange(2)
        mesh = dist.init_device_mesh("cpu", (self.world,))

        def statement(_: int) -> None:
            d = distribute_tensor(self.plain(a).clone(), mesh, [Shard(dim)])
            d = (d * 0.5).tanh() + 0.1
            whole = d.redistribute(mesh, [Replicate()]).to_local()
            self.take(b, whole + d.sum().full_tensor() * 0.01)

        return statement
