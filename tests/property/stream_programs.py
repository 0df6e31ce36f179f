"""Random loops of PyTorch code as people write it, and everything that they leave behind, as bytes."""

from __future__ import annotations

import collections
import copy
import random
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from grape.native import build
from grape.streams import Evidence, Settings, Stream, open_stream, session

needs_compiler = pytest.mark.skipif(
    not build.ready() and build._compiler() is None, reason="no C++ compiler; install one with: apt-get install g++"
)


@pytest.fixture(autouse=True, params=["cpu", "pretended"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test once as on the CPU, and once with graphs that freeze what CUDA graphs freeze."""
    monkeypatch.setattr(session, "_automatic", lambda: request.param)
    return str(request.param)


Statement = Callable[[int], object]
TENSORS = ("a", "b", "h")


class Stop(Exception):
    """What a program raises in the middle of an iteration."""


def another(t: Tensor) -> Tensor:
    """A tensor that refers to the same memory, and is no view."""
    return t.new_empty(0).set_(t, t.storage_offset(), t.shape, t.stride())


@dataclass
class State:
    """What a program works on and keeps."""

    net: nn.Module
    xs: Tensor
    ys: Tensor
    values: dict[str, Tensor]
    generator: torch.Generator
    optimizer: Any = None
    kept: list[Any] = field(default_factory=list)
    recent: collections.deque[Any] = field(default_factory=collections.deque)
    arrays: list[Any] = field(default_factory=list)
    log: list[Any] = field(default_factory=list)


class Program:
    """A loop of random statements on a device. Two programs of one seed do the same."""

    def __init__(self, seed: int, device: str = "cpu") -> None:
        self.random = r = random.Random(seed)
        self.device, self.on_gpu = torch.device(device), device == "cuda"
        torch.manual_seed(seed)
        with self.place():
            self._make(r, seed)

    def place(self) -> AbstractContextManager[object]:
        """Factories make tensors there."""
        return self.device if self.on_gpu else nullcontext()

    def _make(self, r: random.Random, seed: int) -> None:
        self.batch, self.width = r.choice([2, 4]), r.choice([3, 4, 8])
        b, d = self.batch, self.width
        layers: list[nn.Module] = []
        between = [
            nn.ReLU,
            nn.Tanh,
            nn.GELU,
            lambda: nn.Dropout(0.3),
            lambda: nn.BatchNorm1d(d),
            lambda: nn.LayerNorm(d),
        ]
        for _ in range(r.randint(1, 3)):
            layers += [nn.Linear(d, d), r.choice(between)()]
        net = nn.Sequential(*layers)
        self.batches = r.choice([1, 3, 20])
        self.s = State(
            net=net,
            xs=torch.randn(self.batches, b, d),
            ys=torch.randint(0, d, (self.batches, b)),
            values={name: torch.ones(b, d) for name in TENSORS}
            | {"buffer": torch.zeros(5, b, d), "loss": torch.zeros(())},
            generator=torch.Generator(self.device).manual_seed(seed),
        )
        self.s.recent = collections.deque(maxlen=r.choice([1, 2, 5]))
        foreach, rate = r.choice([None, True, False]), 0.02
        self.make_optimizer: Callable[[], Any] = r.choice(
            [
                lambda: torch.optim.SGD(net.parameters(), rate, foreach=foreach),
                lambda: torch.optim.SGD(net.parameters(), rate, momentum=0.9, foreach=foreach),
                lambda: torch.optim.Adam(net.parameters(), rate, foreach=foreach),
                lambda: torch.optim.AdamW(net.parameters(), rate, foreach=foreach, amsgrad=True),
                lambda: torch.optim.Adam(net.parameters(), rate, fused=True),
                lambda: torch.optim.RMSprop(net.parameters(), rate, foreach=foreach),
            ]
        )
        self.s.optimizer = self.make_optimizer()
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.s.optimizer, 0.98) if r.random() < 0.3 else None
        self.body = self.block(0)
        if r.random() < 0.7:
            self.body.insert(r.randrange(len(self.body) + 1), self.training())

    def run(self, iterations: int) -> None:
        with self.place():
            for i in range(iterations):
                try:
                    for statement in self.body:
                        statement(i)
                except (Stop, KeyboardInterrupt, RuntimeError, IndexError, ValueError) as error:
                    self.s.log.append(f"{type(error).__name__} {error}"[:120])

    def result(self) -> list[Any]:
        s = self.s
        left = [s.values, s.kept, s.recent, s.arrays, s.log, s.xs, s.ys, s.net.state_dict(), s.optimizer.state_dict()]
        return flat([*left, [p.grad for p in s.net.parameters()], *self.random_states(), s.generator.get_state()])

    def random_states(self) -> list[Tensor]:
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if self.on_gpu else [])]

    # Statements. Each draws its choices when it is made, so that an iteration does the same as the one before.

    def block(self, depth: int) -> list[Statement]:
        r, kinds = self.random, self.kinds(depth)
        chosen = r.choices(list(kinds), list(kinds.values()), k=r.randint(1, 4) if depth else r.randint(3, 9))
        return [kind(depth) if kind in (self.branch, self.inner, self.mode) else kind() for kind in chosen]

    def kinds(self, depth: int) -> dict[Any, int]:
        """Statements, by how often they come."""
        kinds: dict[Any, int] = {
            self.pure: 20, self.binary: 12, self.in_place: 12, self.outside: 9, self.number: 8, self.draw: 7,
            self.keep: 12, self.many: 4, self.mode: 4, self.event: 4, self.unannounced: 3,
        }  # fmt: skip
        if depth < 2:
            kinds |= {self.training: 6, self.branch: 5, self.inner: 4}
        return kinds

    def name(self) -> str:
        return self.random.choice(TENSORS)

    def get(self, name: str) -> Tensor:
        return self.s.values[name].detach()

    def pure(self) -> Statement:
        f = self.random.choice(
            [
                torch.tanh,
                torch.sin,
                lambda t: t * 1.5,
                lambda t: t.clamp(-1, 1) + 0.25,
                lambda t: t.softmax(-1),
                lambda t: t.cumsum(0) * 0.5,
                lambda t: t.flip(0),
                lambda t: t.sort(-1)[0],
                lambda t: t - t.mean(),
                lambda t: t.t().contiguous().t(),
                lambda t: t.max(1, keepdim=True)[0].expand_as(t),
                lambda t: torch.cat([t[:1], t[1:]]),
                lambda t: torch.where(t > 0, t, -t),
                lambda t: torch.einsum("ij,kj->ik", t, t) @ t * 0.1,
                lambda t: t.double().float(),
                lambda t: torch.stack(t.unbind(0)),
                lambda t: t[t.argsort(0)[:, 0]],
                lambda t: torch.var_mean(t, dim=1, keepdim=True)[1].expand_as(t) + 0.1,
                lambda t: F.conv1d(t[None], torch.full((t.shape[0], t.shape[0], 3), 0.1), padding=1)[0],
                lambda t: torch.complex(t, t).abs(),
                lambda t: t.to(torch.bfloat16).float(),
                lambda t: t.view(torch.int32).view(torch.float32) + 0.5 if t.is_contiguous() else t,
            ]
        )
        k = self.name()

        def statement(_: int) -> None:
            self.s.values[k] = f(self.get(k))

        return statement

    def binary(self) -> Statement:
        f = self.random.choice(
            [
                torch.add,
                torch.mul,
                torch.maximum,
                torch.hypot,
                lambda a, b: a - 0.5 * b,
                lambda a, b: torch.addcmul(a, a, b, value=0.1),
                lambda a, b: a.lerp(b, 0.3),
                lambda a, b: torch.addmm(a, a @ b.t(), b),
                lambda a, b: F.scaled_dot_product_attention(a[None, None], b[None, None], a[None, None])[0, 0],
            ]
        )
        a, b, c = self.name(), self.name(), self.name()

        def statement(_: int) -> None:
            self.s.values[c] = f(self.get(a), self.get(b)).clamp(-3, 3)

        return statement

    def in_place(self) -> Statement:
        r = self.random
        f = r.choice(
            [
                lambda t: t.add_(0.1),
                lambda t: t.mul_(0.9),
                lambda t: t[0].add_(1),
                lambda t: t[..., 1].zero_(),
                lambda t: t.transpose(0, -1).mul_(0.5),
                lambda t: t.clamp_(-2, 2),
                lambda t: t.copy_(t.flip(-1)),
                lambda t: t.view(-1)[::2].neg_() if t.is_contiguous() else t.neg_(),
                lambda t: t.fill_(0.5),
                lambda t: torch.tanh(t, out=t),
                lambda t: torch.mul(t, 0.5, out=torch.empty(0)),
                lambda t: t.masked_fill_(t > 1, 0.0),
                lambda t: t.set_(another(t) * 0.5),
                lambda t: t.squeeze_().unsqueeze_(0).squeeze_(0),
            ]
        )
        k = r.choice([*TENSORS, "buffer"])

        def statement(_: int) -> None:
            f(self.get(k))

        return statement

    def outside(self) -> Statement:
        k, xs, q = self.name(), self.s.xs, self.random.randrange(7)
        b, d = self.batch, self.width

        def statement(i: int) -> None:
            v = self.s.values
            x = xs[i % self.batches]
            if q == 0:
                v[k] = x * 1.0
            elif q == 1:
                v[k] = x + self.get(k)
            elif q == 2:
                v[k] = torch.tensor([[float(i + j) for j in range(d)]] * b)
            elif q == 3:
                v[k] = torch.from_numpy(np.full((b, d), i % 7, dtype=np.float32)).to(self.device) * self.get(k)
            elif q == 4:
                v[k] = x @ self.s.net[0].weight.detach()  # type: ignore[index]
            elif q == 5:
                v[k] = xs[torch.tensor([i % self.batches])][0]
            else:
                v[k] = x

        return statement

    def number(self) -> Statement:
        k, q = self.name(), self.random.randrange(6)

        def statement(i: int) -> None:
            v = self.s.values
            if q == 0:
                v[k] = self.get(k) * (1 + 0.01 * i) * 0.5
            elif q == 1:
                v[k] = v["buffer"][i % 5].clone()
            elif q == 2:
                v["buffer"][i % 5] = self.get(k)
            elif q == 3:
                v[k] = torch.full((self.batch, self.width), float(i))
            elif q == 4:
                v[k] = self.get(k).add(self.get("a"), alpha=0.1 * (i % 3)).clamp(-3, 3)
            else:
                v[k] = torch.zeros(self.batch, self.width).add_(i % 2)

        return statement

    def draw(self) -> Statement:
        k, q = self.name(), self.random.randrange(8)

        def statement(i: int) -> None:
            v, t = self.s.values, self.get(k)
            if q == 0:
                v[k] = torch.randn(self.batch, self.width)
            elif q == 1:
                v[k] = F.dropout(t, 0.4)
            elif q == 2:
                v[k] = torch.rand(self.batch, self.width, generator=self.s.generator)
            elif q == 3:
                v[k] = t + torch.randn_like(t) * 0.1
            elif q == 4:
                self.s.log.append(torch.multinomial(torch.softmax(t.nan_to_num(), -1)[0], 1).item())
            elif q == 5:
                v[k] = t[torch.randperm(self.batch)]
            elif q == 6:
                v[k] = torch.bernoulli(t.sigmoid().nan_to_num())
            elif i % 7 == 3:
                torch.manual_seed(i)

        return statement

    def keep(self) -> Statement:
        k, q = self.random.choice([*TENSORS, "loss"]), self.random.randrange(10)

        def statement(i: int) -> None:
            s, v = self.s, self.get(k)
            if q == 0:
                s.kept.append(s.values[k])
            elif q == 1:
                s.kept.append(v.view(-1)[:1] if v.is_contiguous() else v)
            elif q == 2:
                s.recent.append(v)
            elif q == 3:
                s.arrays.append(v.cpu().numpy() if self.on_gpu else v.numpy())
            elif q == 4:
                s.kept = [*s.kept[-20:], v[..., :1] if v.dim() else v]
            elif q == 5 and i % 3 == 0:
                s.kept.append(v)
            elif q == 6:
                s.recent.append([p.grad for p in s.net.parameters()])
            elif q == 7:
                s.log.append(v.tolist())
            elif q == 8:
                s.arrays.append(torch.from_dlpack(v) if self.on_gpu else np.from_dlpack(v))
            elif q == 9:
                s.log.append(repr(v))

        return statement

    def many(self) -> Statement:
        f = self.random.choice(
            [
                lambda ts: torch._foreach_mul(ts, 0.5),
                lambda ts: torch._foreach_add(ts, [0.1] * len(ts)),
                lambda ts: torch._foreach_lerp(ts, list(reversed(ts)), 0.3),
                lambda ts: (torch._foreach_tanh_(ts), ts)[1],
                lambda ts: [t * n for t, n in zip(ts, torch._foreach_norm(ts), strict=True)],
            ]
        )

        def statement(_: int) -> None:
            new = f([self.get(k).clamp(-3, 3) for k in TENSORS])
            self.s.values.update(zip(TENSORS, new, strict=True))

        return statement

    def mode(self, depth: int) -> Statement:
        inside = [self.pure(), self.binary(), self.in_place(), self.pure()]
        enter = self.random.choice(
            [
                torch.no_grad,
                torch.enable_grad,
                self.lower,
                torch.inference_mode,
            ]
        )

        def statement(i: int) -> None:
            with enter():
                for other in inside:
                    other(i)
            for k in TENSORS:
                self.s.values[k] = self.s.values[k].float().clone()

        return statement

    def lower(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16)

    def training(self) -> Statement:
        r = self.random
        none, micro, twice, clip, keep = (
            r.random() < 0.6,
            r.choice([1, 1, 2, 3]),
            r.random() < 0.15,
            r.random() < 0.2,
            r.random() < 0.2,
        )
        again, read, retain = r.random() < 0.1, r.randrange(4), r.random() < 0.3

        def statement(i: int) -> None:
            s = self.s
            s.optimizer.zero_grad(set_to_none=none)
            for k in range(micro):
                x = s.xs[(i + k) % self.batches] + 0.1 * self.get("h")
                out = checkpoint(s.net, x, use_reentrant=False) if again else s.net(x)
                loss = F.cross_entropy(out, s.ys[(i + k) % self.batches]) / micro if read else out.pow(2).mean()
                if twice:
                    grad = torch.autograd.grad(out.pow(2).sum(), next(s.net.parameters()), create_graph=True)[0]
                    loss = loss + 0.01 * grad.pow(2).sum()
                loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(s.net.parameters(), 1.0)
            if keep:
                s.recent.append([p.grad for p in s.net.parameters()])
            s.optimizer.step()
            if self.schedule:
                self.schedule.step()
            s.values["loss"] = loss if retain else loss.detach()
            if read == 0 or (read == 1 and i % 10 == 0):
                s.log.append(loss.item())
            if read == 2:
                s.log.append(bool(loss > 1.2))

        return statement

    def branch(self, depth: int) -> Statement:
        k, q, at = self.name(), self.random.randrange(3), self.random.choice([0.0, 0.3, 1.0])
        yes, no = self.block(depth + 1), self.block(depth + 1)

        def statement(i: int) -> None:
            t = self.get(k)
            taken = float(t.mean()) > at if q == 0 else bool((t > at).any()) if q == 1 else i % 4 == 1
            for other in yes if taken else no:
                other(i)

        return statement

    def inner(self, depth: int) -> Statement:
        body, times, vary = self.block(depth + 1), self.random.choice([2, 3, 5]), self.random.random() < 0.3

        def statement(i: int) -> None:
            for k in range(times + (i % 3 if vary else 0)):
                for other in body:
                    other(i + k)

        return statement

    def event(self) -> Statement:
        q, every = self.random.randrange(9), self.random.choice([7, 13, 29])

        def statement(i: int) -> None:
            s = self.s
            if i % every != every - 1:
                return
            if q == 0:
                s.net.load_state_dict({k: v.detach().clone() for k, v in s.net.state_dict().items()}, assign=True)
                s.optimizer = self.make_optimizer()
                s.optimizer = type(s.optimizer)(s.net.parameters(), lr=0.01)
            elif q == 1:
                s.kept.append(copy.deepcopy(s.net.state_dict()))
            elif q == 2:
                raise Stop(i)
            elif q == 3:
                s.values["a"].detach() @ torch.ones(17, 2)
            elif q == 4:
                raise KeyboardInterrupt
            elif q == 5:
                for p in s.net.parameters():
                    p.data = p.data.clone() * 0.99
            elif q == 6:
                s.optimizer.load_state_dict(copy.deepcopy(s.optimizer.state_dict()))
            elif q == 7:
                s.net.eval()
                with torch.no_grad():
                    s.log.append(s.net(s.xs[0]).sum().item())
                s.net.train()
            else:
                F.embedding(torch.tensor([self.batch], device="cpu"), self.get("a"))  # fails

        return statement

    def unannounced(self) -> Statement:
        """What reads or writes memory without an operator."""
        k, q = self.name(), self.random.randrange(5)

        def statement(i: int) -> None:
            t = self.get(k)
            if q == 0 and t.is_contiguous():
                array: Any = torch.from_dlpack(t) if self.on_gpu else t.numpy()
                other = t * 2
                array[0] = i % 5
                self.s.values[k] = other.clamp(-3, 3)
            elif q == 1:
                read: list[float] = []
                thread = threading.Thread(target=lambda: read.append(float(t.sum())))
                thread.start()
                thread.join()
                self.s.log.append(read)
            elif q == 2:
                self.s.log.append(t.untyped_storage()[0])
            elif q == 3:
                storage = t.untyped_storage()
                t.mul_(0.5)
                self.s.log.append([storage[n] for n in range(4)])
            elif q == 4:
                torch.add(t, 1.0).cpu().apply_(lambda x: min(x, 2.0))

        return statement


def flat(x: Any) -> list[Any]:
    """Every tensor in `x` by its bytes, everything else by its text."""
    if isinstance(x, Tensor):
        raw = x.detach().reshape(-1).clone().view(torch.uint8)
        version = None if x.is_inference() else x._version
        return [(tuple(x.shape), x.stride(), x.dtype, x.requires_grad, version, raw.cpu().numpy().tobytes())]
    if isinstance(x, dict):
        return [y for k in x for y in (repr(k), *flat(x[k]))]
    if isinstance(x, (list, tuple, collections.deque)):
        return [z for y in x for z in flat(y)]
    return [x.tobytes()] if isinstance(x, np.ndarray) else [repr(x)]


def settings_of(seed: int, device: Literal["auto", "cuda"] = "auto") -> Settings:
    r = random.Random(seed + 1)
    return Settings(
        device=device,
        longest=r.choice([1, 3, 20, 100]),
        shortest=r.choice([1, 8, 32]),
        settled=r.choice([0, 0, 100]),
        hot=r.choice([2, 3]),
        patience=r.choice([0, 0, 100]),
        strays=r.choice([0, 2, 16]),
        steady=r.choice([0, 1, 2]),
        price=r.choice([0, 0, 1e-4, 0.01]),
        doubt=r.choice([0, 0, 1, 9]),
        budget=r.choice([1 << 32, 1 << 32, 1 << 32, 20_000, 6000, 1000]),
        furthest=r.choice([4000, 4000, 60]),
        captures=r.choice([1, 6, 6]),
        unused=r.choice([50_000, 50_000, 0, 40]),
    )


def outcome(
    seed: int,
    iterations: int,
    *,
    stream: bool,
    device: Literal["cpu", "cuda"] = "cpu",
    kind: type[Program] = Program,
) -> tuple[list[Any], Evidence | None]:
    """What a program leaves, plain or under a stream that is open while it is made and runs."""
    opened = open_stream(settings_of(seed, "cuda" if device == "cuda" else "auto")) if stream else None
    try:
        program = kind(seed, device)
        program.run(iterations)
    finally:
        if isinstance(opened, Stream):
            opened.close()
    return program.result(), opened.evidence() if isinstance(opened, Stream) else None
