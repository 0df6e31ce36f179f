"""Random programs about whose memory it is: aliases, buffers that alternate, hooks, gradients without dropout, several
shapes, exceptions inside a backward, results of long ago."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grape.streams import session
from tests.property.stream_programs import Program, Statement, Stop, flat


class Scaled(torch.autograd.Function):
    """With a backward that may raise, and a saved tensor."""

    raises: type[BaseException] | None = None

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x.tanh())
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if Scaled.raises is not None:
            raise Scaled.raises("in a backward")
        (saved,) = ctx.saved_tensors
        return grads[0] * ctx.factor + 0.01 * saved, None


def doubled(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(2)


@contextmanager
def raising(error: type[BaseException] | None) -> Iterator[None]:
    Scaled.raises = error
    try:
        yield
    finally:
        Scaled.raises = None


class Reuse(Program):
    """A loop of statements about memory, between those of every program."""

    def _make(self, r: Any, seed: int) -> None:
        self.pool = torch.linspace(-1, 1, 400)
        self.pair = [torch.zeros(4, 8), torch.zeros(4, 8)]
        self.cells = nn.ModuleDict({"lstm": nn.LSTMCell(8, 8), "norm": nn.LayerNorm(8), "out": nn.Linear(8, 4)})
        self.cells["tied"] = self.cells["out"]
        self.averages = [p.detach().clone() for p in self.cells.parameters()]
        self.cell_optimizer = r.choice(
            [
                lambda ps: torch.optim.Adam(ps, 0.01, foreach=r.random() < 0.5),
                lambda ps: torch.optim.SGD(ps, 0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
                lambda ps: torch.optim.NAdam(ps, 0.01),
                lambda ps: torch.optim.Adagrad(ps, 0.01),
                lambda ps: torch.optim.AdamW(ps, 0.01, fused=True),
                lambda ps: torch.optim.Rprop(ps, 0.01),
            ]
        )(list(self.cells.parameters()))
        super()._make(r, seed)
        self.cache = torch.zeros(0, self.width)

    def result(self) -> list[Any]:
        mine = [self.pool, self.pair, self.cells.state_dict(), self.averages, self.cache]
        return super().result() + flat([*mine, self.cell_optimizer.state_dict(), [p.grad for p in self.averages]])

    def kinds(self, depth: int) -> dict[Any, int]:
        more = {
            self.alias: 12, self.alternate: 8, self.offset: 8, self.grown: 5, self.old: 6, self.parts: 8, self.leaf: 10,
            self.interrupted: 5, self.stream: 3, self.transform: 3, self.exact: 4, self.threads: 2,
        }  # fmt: skip
        return super().kinds(depth) | more | ({self.recurrent: 6} if depth < 2 else {})

    def alias(self) -> Statement:
        q, j, k = self.random.randrange(8), self.name(), self.name()

        def statement(i: int) -> None:
            v = self.s.values
            if q == 0:
                v[j], v[k] = v[k], v[j]
            elif q == 1:
                v[j] = v[k]
            elif q == 2:
                v[j] = self.get(k)[:1].expand(self.batch, self.width)
            elif q == 3:
                v[j] = self.get(k).as_strided((self.batch, self.width), (1, 1)).clone()
            elif q == 4:
                v[j] = self.get(k).clone().t().contiguous().t()
            elif q == 5:
                self.get(j).copy_(self.get(k))
            elif q == 6 and i % 3 == 1:
                v[j] = v[k]
            elif q == 7:
                a, b = v[j].detach().clone(), v[k].detach().clone()
                a.data, b.data = b.data, a.data
                v[j], v[k] = a, b

        return statement

    def alternate(self) -> Statement:
        """Two buffers in turn, and one that is overwritten while the other is read."""
        r = self.random
        k, q, lag = self.name(), r.randrange(4), r.choice([1, 2, 3])

        def statement(i: int) -> None:
            here, there = self.pair[i % 2], self.pair[1 - i % 2]
            part = here[: self.batch, : self.width]
            if q == 0:
                torch.tanh(self.get(k), out=part)
                self.s.values[k] = part.clone() + there[: self.batch, : self.width]
            elif q == 1:
                part.copy_(self.get(k)).mul_(0.5)
                self.s.values[k] = part * 1.0
            elif q == 2:
                here.lerp_(there, 0.25)
            elif i % lag == 0:
                self.pair.reverse()

        return statement

    def offset(self) -> Statement:
        """A part of a large buffer that lies elsewhere each time, at any alignment or at one."""
        r = self.random
        k, step, every, write = self.name(), r.choice([1, 4, 16]), r.choice([1, 3, 10]), r.random() < 0.4

        def statement(i: int) -> None:
            n = self.batch * self.width
            begin = step * (i // every % 8)
            part = self.pool[begin : begin + n].view(self.batch, self.width)
            if write:
                part.mul_(0.9).add_(self.get(k), alpha=0.1)
            else:
                self.s.values[k] = part * 2 - self.get(k)

        return statement

    def grown(self) -> Statement:
        k, most = self.name(), self.random.choice([3, 8, 30])

        def statement(_: int) -> None:
            self.cache = torch.cat([self.cache, self.get(k).clamp(-3, 3)])[-most:]
            self.s.values[k] = (self.get(k) @ self.cache.t()).softmax(-1) @ self.cache

        return statement

    def old(self) -> Statement:
        """A result of long ago is an input, or is overwritten."""
        k, q = self.name(), self.random.randrange(4)

        def statement(i: int) -> None:
            kept = [t for t in (*self.s.kept, *self.s.recent) if isinstance(t, Tensor) and t.shape == self.get(k).shape]
            if not kept:
                self.s.kept.append(self.get(k) * 1.0)
            elif q == 0:
                self.s.values[k] = kept[-1].detach() * 0.5 + self.get(k)
            elif q == 1:
                self.s.values[k] = kept[i % len(kept)]
            elif q == 2:
                kept[0].detach().mul_(0.5)
            elif i % 5 == 4:
                self.s.kept.clear()
                gc.collect()

        return statement

    def parts(self) -> Statement:
        f: Callable[[Tensor], Tensor] = self.random.choice(
            [
                lambda t: torch.cat([c.mul_(0.5) for c in (t * 1.0).chunk(2, -1)], -1),
                lambda t: torch.stack([row + k for k, row in enumerate((t + 1).unbind(0))]),
                lambda t: t - torch.std_mean(t, 0)[1],
                lambda t: t.topk(2, -1)[0].sum(-1, keepdim=True) + t,
                lambda t: sum((t * 1.5).split(1, 0), torch.zeros(())).expand_as(t),
                lambda t: torch.where(t > 0.5, t.exp().clamp(max=3), t.clone().fill_(0.25)),
                lambda t: (t.unsqueeze(0) * t.unsqueeze(1)).sum(0).tanh(),
                lambda t: F.layer_norm(t, t.shape[-1:]),
                lambda t: F.pad(t, (1, 1))[:, 1:-1],
                lambda t: t.roll(1, 0).tril_(),
                lambda t: torch.fft.ifft(torch.fft.fft(t)).real.contiguous(),
                lambda t: t.masked_scatter(t > 9, t),
                lambda t: t[t.abs().sum(-1) >= 0],
                lambda t: t.index_select(0, torch.arange(t.shape[0] - 1, -1, -1)),
            ]
        )
        k = self.name()

        def statement(_: int) -> None:
            self.s.values[k] = f(self.get(k))

        return statement

    def leaf(self) -> Statement:
        """A gradient of a few operators, with hooks, operators in place and what is kept of it."""
        r = self.random
        k, q, every = self.name(), r.randrange(9), r.choice([1, 4, 9])

        def statement(i: int) -> None:
            s, x = self.s, self.get(k).clone().requires_grad_()
            y = torch.sin(x * 1.25)
            if q == 0:
                y.register_hook(lambda g: g * 0.5)
            elif q == 1:
                y = y.relu_().add_(0.5)
            elif q == 2:
                y.retain_grad()
            elif q == 3:
                y = Scaled.apply(y, 0.5 if i % every else 2.0)
            elif q == 4:
                first = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
                y = y + first
            elif q == 5:
                with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
                    y = y.exp() * y
            elif q == 6:
                x.register_post_accumulate_grad_hook(doubled)
            elif q == 7:
                y.backward(torch.ones_like(y), retain_graph=True)
            z = (y * y).mean()
            if q == 8:
                z.backward()
                with torch.no_grad():
                    x.sub_(x.grad, alpha=0.1)  # type: ignore[arg-type]
                    x.grad.zero_()  # type: ignore[union-attr]
                z = (x * x).sum() + torch.relu(x).mean()
            z.backward()
            s.values[k] = x.grad.clamp(-3, 3) if i % every else x.grad  # type: ignore[union-attr,assignment]
            if q == 2 and i % every == 0:
                s.recent.append([y.grad, z])

        return statement

    def recurrent(self) -> Statement:
        r = self.random
        read, long, tied, clear = r.random() < 0.4, r.choice([1, 3]), r.random() < 0.5, r.choice([True, False, None])

        def statement(i: int) -> None:
            x = F.pad(self.get("a"), (0, 8 - self.width))[: 1 + i % 2 if self.batches == 3 else None]
            h = c = torch.zeros(x.shape[0], 8)
            for k in range(long + (i % 2 if self.batches == 20 else 0)):
                h, c = self.cells["lstm"](self.cells["norm"](x) * (k + 1), (h, c))
            out = self.cells["out"](h)
            if tied:
                out = self.cells["tied"](F.pad(out, (0, 4)))
            loss = F.mse_loss(out, torch.full_like(out, 0.25))
            loss.backward()
            if clear is not None:
                self.cell_optimizer.step()
                self.cell_optimizer.zero_grad(set_to_none=clear)
            elif i % 3 == 2:
                self.cell_optimizer.step()
                for p in self.cells.parameters():
                    p.grad = p.grad.clone() * 0.5 if p.grad is not None and i % 2 else None
            torch._foreach_lerp_(self.averages, [p.detach() for p in self.cells.parameters()], 0.1)
            if read:
                self.s.log.append(loss.item())
            self.s.values["loss"] = loss.detach()

        return statement

    def interrupted(self) -> Statement:
        """Exceptions out of a backward, a hook or between two operators in place."""
        r = self.random
        k, q, every = self.name(), r.randrange(3), r.choice([2, 5, 11])
        error = r.choice([Stop, KeyboardInterrupt])

        def statement(i: int) -> None:
            bad = error if i % every == every - 1 else None
            x = self.get(k)
            x.mul_(0.5)
            if q == 0:
                w = self.pool[: self.width].clone().requires_grad_()
                with raising(bad):
                    (Scaled.apply(x * w, 0.5) * 2).sum().backward()
                self.s.values[k] = x + w.grad  # type: ignore[operator]
            elif q == 1:
                w = (x * 2).requires_grad_()
                y = w.exp()
                if bad:
                    y.register_hook(self._raise(bad))
                y.sum().backward()
            elif bad:
                raise bad
            x.add_(0.25)

        return statement

    @staticmethod
    def _raise(error: type[BaseException]) -> Callable[[Tensor], Tensor]:
        def hook(_: Tensor) -> Tensor:
            raise error

        return hook

    def stream(self) -> Statement:
        """What a stream is asked for from outside; nothing where there is none."""
        k, q, every = self.name(), self.random.randrange(3), self.random.choice([1, 6])

        def statement(i: int) -> None:
            stream = session._current if i % every == 0 else None
            if stream is not None and q == 0:
                stream.flush()
            if stream is not None and q > 0:
                stream.pause()
            if q > 0:
                self.get(k).add_(0.5)
                self.s.values[k] = self.get(k).tanh()
            if stream is not None and q > 0:
                assert stream.resume() is None

        return statement

    def transform(self) -> Statement:
        f: Callable[[Tensor], Tensor] = self.random.choice(
            [
                lambda t: torch.func.grad(lambda x: (x.sin() * x).sum())(t),
                lambda t: torch.func.vmap(lambda row: row.tanh() - row.mean())(t),
                lambda t: torch.func.jvp(lambda x: x.tanh() * 2, (t,), (torch.ones_like(t),))[1],
                lambda t: torch.func.functional_call(self.s.net, dict(self.s.net.named_buffers()), (t,)).detach(),
            ]
        )
        k = self.name()

        def statement(_: int) -> None:
            self.s.values[k] = f(self.get(k))

        return statement

    def exact(self) -> Statement:
        """Numbers that are equal, and are not the same."""
        k, every = self.name(), self.random.choice([2, 7, 13])
        one, other = self.random.choice([(0.0, -0.0), (1, 1.0), (True, 1), (float("nan"), 0.5), (2, 2.5)])

        def statement(i: int) -> None:
            number = one if i % every else other
            self.s.values[k] = self.get(k) * 0.5
            self.s.kept[-1:] = [torch.full((2,), 1.0).mul_(number), torch.ones(2) * number]

        return statement

    def threads(self) -> Statement:
        """Another thread changes a tensor, or is the last to hold one."""
        k, q = self.name(), self.random.randrange(2)

        def statement(_: int) -> None:
            box = [self.get(k) * 1.0]
            work = (lambda: box[0].mul_(0.5)) if q else box.clear
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            if box:
                self.s.values[k] = box[0] + 1

        return statement
