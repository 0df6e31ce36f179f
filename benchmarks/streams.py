"""Programs of the kinds that operator streams are for, plainly and under a stream, in one process.

    python benchmarks/streams.py [--only NAME ...] [--seconds 240] [--small] [--out FILE]

Each program is a step that is called again and again. Two copies are made from the same seed, and rounds of steps
alternate between them: one under a stream, one aside of it. Both must leave the same losses and the same state, bit for
bit. Writes `results/streams.json`: machine, versions, medians and samples in milliseconds per step, from an idle device
to an idle device, and what the stream did.

On the CPU streams defer nothing to a GPU: `--small` checks that the programs run and agree.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good
from _machine import machine, result_path, write
from _measure import numbers, same, synchronize
from _numbering import level
from torch import Tensor, nn
from torch.nn import functional as F

from grape.streams import Settings, Stream, open_stream

Step = Callable[[], object]
State = Callable[[], Sequence[Tensor]]
Program = Callable[[str, bool], tuple[Step, State]]


def state_of(net: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> State:
    def state() -> list[Tensor]:
        kept = [value for entry in (optimizer.state.values() if optimizer else ()) for value in entry.values()]
        return [*net.parameters(), *net.buffers(), *filter(torch.is_tensor, kept)]

    return state


def training(net: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> tuple[Step, State]:
    """One step of `optimizer` against `loss`, which is read."""

    def step() -> float:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        return value.item()

    return step, state_of(net, optimizer)


def mlp_adam(device: str, small: bool) -> tuple[Step, State]:
    x, y = torch.randn(128, 784).to(device), torch.randint(0, 10, (128,)).to(device)
    net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    return training(net, torch.optim.Adam(net.parameters()), lambda: F.cross_entropy(net(x), y))


def heat_equation(device: str, small: bool) -> tuple[Step, State]:
    """A physics-informed network: two derivatives by autograd, a third for the step."""
    net = nn.Sequential(nn.Linear(2, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1)).to(device)
    at = torch.rand(400, 2).to(device).requires_grad_()

    def loss() -> Tensor:
        u = net(at)
        (du,) = torch.autograd.grad(u.sum(), at, create_graph=True)
        (ddu,) = torch.autograd.grad(du[:, 0].sum(), at, create_graph=True)
        return (du[:, 1] - 0.1 * ddu[:, 0]).square().mean() + (u - at[:, :1].sin()).square().mean()

    return training(net, torch.optim.Adam(net.parameters(), 1e-3), loss)


def lstm_unrolled(device: str, small: bool) -> tuple[Step, State]:
    length = 6 if small else 20
    net = nn.ModuleDict({"cell": nn.LSTMCell(64, 64), "head": nn.Linear(64, 50)}).to(device)
    xs, ys = torch.randn(length, 8, 64).to(device), torch.randint(0, 50, (length, 8)).to(device)

    def loss() -> Tensor:
        h = c = torch.zeros(8, 64, device=device)
        losses = []
        for k in range(length):
            h, c = net["cell"](xs[k], (h, c))
            losses.append(F.cross_entropy(net["head"](h), ys[k]))
        return torch.stack(losses).mean()

    return training(net, torch.optim.Adam(net.parameters()), loss)


class Block(nn.Module):
    """A layer as GPT-2 has them: attention over what came before, then a network of its own for each position."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor, Tensor] | None = None) -> Tensor:
        """`x` is [batch, length, width]; `cache` holds keys and values [batch, heads, room, dim], and the position."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1)
        )
        if cache is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            keys, values, at = cache
            keys.index_copy_(2, at, k)
            values.index_copy_(2, at, v)
            seen = torch.arange(keys.shape[2], device=x.device) <= at
            scores = (q @ keys.transpose(-2, -1)) * q.shape[-1] ** -0.5
            mixed = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ values
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.between(x)), approximate="tanh"))


class Language(nn.Module):
    def __init__(self, *, layers: int, width: int, heads: int, words: int, room: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(room, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.last = nn.LayerNorm(width)

    def forward(self, ids: Tensor, places: Tensor, caches: Sequence[Any] | None = None) -> Tensor:
        x = self.words(ids) + self.places(places)
        for n, block in enumerate(self.blocks):
            x = block(x, caches[n] if caches is not None else None)
        return F.linear(self.last(x), self.words.weight)


def language(small: bool) -> Language:
    if small:
        return Language(layers=2, width=32, heads=2, words=101, room=64)
    return Language(layers=12, width=768, heads=12, words=50257, room=1024)


def gpt2_training(device: str, small: bool) -> tuple[Step, State]:
    net = language(small).to(device)
    ids = torch.randint(0, net.words.num_embeddings, (4, 65)).to(device)
    places = torch.arange(64, device=device)

    def loss() -> Tensor:
        return F.cross_entropy(net(ids[:, :-1], places).flatten(0, 1), ids[:, 1:].flatten())

    return training(net, torch.optim.AdamW(net.parameters(), lr=1e-4), loss)


def decoding(device: str, small: bool) -> tuple[Step, State]:
    """One token more, with a cache of fixed size; the token is read, as a sampling loop does."""
    net, room = language(small).to(device).eval(), 64
    if device == "cuda":
        net = net.half()
    dim = net.words.embedding_dim // net.blocks[0].heads  # type: ignore[operator]
    empty = torch.zeros(1, net.blocks[0].heads, room, dim, device=device, dtype=net.words.weight.dtype)  # type: ignore[arg-type]
    at = torch.zeros(1, dtype=torch.long, device=device)
    caches = [(empty.clone(), empty.clone(), at) for _ in net.blocks]
    token = torch.zeros(1, 1, dtype=torch.long, device=device)

    @torch.no_grad()
    def step() -> int:
        chosen = net(token, at, caches)[:, -1].argmax(-1, keepdim=True)
        token.copy_(chosen)
        at.add_(1).remainder_(room)
        return int(chosen.item())

    return step, lambda: [token, at, *(part for cache in caches for part in cache[:2])]


def cnn(device: str, small: bool) -> tuple[Step, State]:
    net = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1)),
        *(nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    ).to(device)
    x, y = torch.randn(32, 3, 32, 32).to(device), torch.randint(0, 10, (32,)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    return training(net, optimizer, lambda: F.cross_entropy(net(x), y))


def runge_kutta(device: str, small: bool) -> tuple[Step, State]:
    field = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2)).to(device)
    start, h = torch.randn(1, 2).to(device), 0.1

    @torch.no_grad()
    def step() -> float:
        z = start
        for _ in range(10):
            a = field(z)
            b = field(z + h / 2 * a)
            c = field(z + h / 2 * b)
            d = field(z + h * c)
            z = z + h / 6 * (a + 2 * b + 2 * c + d)
        return z.sum().item()

    return step, state_of(field)


def _without_dropout(net: nn.Module) -> nn.Module:
    for part in net.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return net


def resnet50_half(device: str, small: bool) -> tuple[Step, State]:
    import torchvision

    net = torchvision.models.resnet50().eval().to(device)
    x = torch.randn(1, 3, 64 if small else 224, 64 if small else 224).to(device)
    if device == "cuda":
        net, x = net.half(), x.half()

    @torch.no_grad()
    def step() -> int:
        return int(net(x).argmax(-1).item())

    return step, state_of(net)


def mobilenet(device: str, small: bool) -> tuple[Step, State]:
    import torchvision

    net = _without_dropout(torchvision.models.mobilenet_v3_small(num_classes=10)).to(device)
    x, y = torch.randn(16, 3, 64, 64).to(device), torch.randint(0, 10, (16,)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    return training(net, optimizer, lambda: F.cross_entropy(net(x), y))


PROGRAMS: dict[str, Program] = {
    made.__name__: made
    for made in (
        mlp_adam,
        heat_equation,
        lstm_unrolled,
        gpt2_training,
        cnn,
        runge_kutta,
        resnet50_half,
        mobilenet,
        decoding,
    )
}


class Side:
    """One copy of a program and what its rounds gave. Two copies must be given the same rounds: see `level`."""

    def __init__(self, program: Program, device: str, small: bool) -> None:
        torch.manual_seed(0)
        self.device = device
        self.step, self.state = program(device, small)
        self.read: list[object] = []
        self.samples: list[float] = []

    def round(self, steps: int, *, timed: bool, stream: Stream | None = None) -> None:
        """Under `stream`, which is paused before and after, if there is one."""
        if self.device == "cuda":
            level()
        if stream is not None:
            assert stream.resume() is None
        synchronize()
        began = time.perf_counter()
        self.read += [self.step() for _ in range(steps)]
        synchronize()
        if timed:
            self.samples.append((time.perf_counter() - began) * 1e3 / steps)
        if stream is not None:
            stream.pause()


def measure(program: Program, device: str, small: bool, seconds: float) -> dict[str, Any]:
    """Rounds of steps, under the stream and aside of it in turn."""
    plain, ours = Side(program, device, small), Side(program, device, small)
    until = time.monotonic() + seconds
    plain.round(3, timed=False)
    ours.round(3, timed=False)
    stream = open_stream(Settings(device="cuda" if device == "cuda" else "pretended"))
    assert isinstance(stream, Stream), stream
    rounds = warm = 0
    steps = 3 if small else 10
    with stream:
        stream.pause()
        while warm < 60 // steps and time.monotonic() < until - seconds / 2:  # found, recorded, captured
            ours.round(steps, timed=False, stream=stream)
            warm += 1
        before = asdict(stream.evidence())
        while rounds < 3 or (rounds < 40 and time.monotonic() < until):
            ours.round(steps, timed=True, stream=stream)
            plain.round(steps, timed=True)
            rounds += 1
        after = asdict(stream.evidence())
    while len(plain.read) < len(ours.read):
        plain.round(steps, timed=False)
    eager_ms, stream_ms = numbers(plain.samples), numbers(ours.samples)
    assert eager_ms is not None and stream_ms is not None
    per_step = {
        name: (after[name] - before[name]) / (rounds * steps)
        for name in ("matched", "segments", "partial", "launched", "copied_in", "copied_out")
    }
    return {
        "identical": plain.read == ours.read and same(plain.state(), ours.state()),
        "speedup": eager_ms["median"] / stream_ms["median"],
        "eager_ms": eager_ms,
        "stream_ms": stream_ms,
        "rounds": rounds,
        "steps": steps,
        "per_step": per_step,
        "evidence": after,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--seconds", type=float, default=240.0, help="for everything")
    parser.add_argument("--small", action="store_true", help="tiny sizes, few steps")
    parser.add_argument("--out", type=Path, default=result_path("streams"))
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.backends.cudnn.deterministic = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ends = time.monotonic() + arguments.seconds
    programs: dict[str, Any] = {}
    for n, name in enumerate(arguments.only):
        if name in ("resnet50_half", "mobilenet") and importlib.util.find_spec("torchvision") is None:
            programs[name] = {"skipped": "torchvision is not installed"}
        else:
            share = max(2.0, (ends - time.monotonic()) / (len(arguments.only) - n))
            try:
                programs[name] = measure(PROGRAMS[name], device, arguments.small, share)
            except Exception as error:
                programs[name] = {"error": f"{type(error).__name__}: {error}"}
        row = programs[name]
        gist = {key: row[key] for key in ("identical", "speedup", "per_step", "error", "skipped") if key in row}
        if "eager_ms" in row:
            gist |= {key: round(row[key]["median"], 3) for key in ("eager_ms", "stream_ms")}
        print(name, json.dumps(gist), flush=True)
        write(arguments.out, {"machine": machine(), "programs": programs})
    return 0 if all(row.get("identical", "skipped" in row) for row in programs.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
