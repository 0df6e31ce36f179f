"""Training and decoding over several ranks, plainly, under Grape and under `torch.compile`.

    python benchmarks/several_gpus.py [--only NAME ...] [--ranks 2] [--steps 200] [--runs 3] [--small] [--seconds 240]
                                      [--no-compile] [--out FILE]

A process for each rank, with NCCL and a GPU of its own, or with gloo on the CPU where there are no GPUs for all. In it
a program is made from the same seed three times: its runs go on from each other plainly, plainly again, and under
`grape.session()`. Compared after each run, bit by bit: parameters, buffers, losses, states of the optimizer; what
differs between the plain processes of runs is not judged. Ranks have data of their own. Then the modules are compiled
(`mode="default"`), without Grape. Times are those of a run, from an idle device to an idle device, the slowest rank's.

Writes `results/several_gpus.json`: machine, versions, samples. `--small` takes seconds on the CPU, where nothing is
gained, and checks that the programs run and agree.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _machine import machine, result_path, write
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import grape

Step = Callable[[int], object]
Program = tuple[Step, Callable[[], list[Tensor]], nn.Module]
READ_EVERY = 10
"""Steps between two `loss.item()`."""


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out, self.head = nn.Linear(width, width), width // heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.up, self.down = (
            Attention(width, heads),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2 in plain linear layers, which tensor parallelism can cut."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.length = nn.LayerNorm(width), length

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def gpt(small: bool) -> Gpt:
    sizes = (101, 32, 2, 2, 64) if small else (50257, 768, 12, 12, 1024)
    return Gpt(*sizes).to(DEVICE)


def whole(tensor: Tensor) -> Tensor:
    given = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return given.detach().clone()


def training(model: nn.Module, loss_of: Callable[[nn.Module], Tensor], optimizer: torch.optim.Optimizer) -> Program:
    losses: list[Tensor] = []

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if number % READ_EVERY == 0:
            loss.item()

    def state() -> list[Tensor]:
        kept = [value for entry in optimizer.state.values() for value in entry.values() if torch.is_tensor(value)]
        return [whole(t) for t in (*model.parameters(), *model.buffers(), *kept, *losses)]

    return step, state, model


def language(batch: int, length: int, vocabulary: int) -> Callable[[nn.Module], Tensor]:
    tokens = torch.randint(vocabulary, (batch, length + 1), device=DEVICE)

    def loss(model: nn.Module) -> Tensor:
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return loss


def ddp_mlp(small: bool) -> Program:
    torch.manual_seed(0)
    width = 16 if small else 256
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(width, 10)).to(DEVICE), **RANKED)
    torch.manual_seed(1 + dist.get_rank())
    x, y = torch.randn(64, width, device=DEVICE), torch.randint(10, (64,), device=DEVICE)
    return training(model, lambda net: F.cross_entropy(net(x), y), torch.optim.Adam(model.parameters(), lr=1e-3))


def ddp_cnn(small: bool) -> Program:
    torch.manual_seed(0)
    width = 8 if small else 32
    layers: list[nn.Module] = []
    for before, after in ((3, width), (width, width), (width, 2 * width), (2 * width, 2 * width)):
        layers += [nn.Conv2d(before, after, 3, padding=1, stride=2), nn.GroupNorm(4, after), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10)).to(DEVICE)
    model = DistributedDataParallel(net, **RANKED)
    torch.manual_seed(1 + dist.get_rank())
    x, y = torch.randn(32, 3, 32, 32, device=DEVICE), torch.randint(10, (32,), device=DEVICE)
    return training(
        model, lambda m: F.cross_entropy(m(x), y), torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    )


def ddp_gpt2(small: bool) -> Program:
    """GPT-2 124M of transformers, batch 4 x 64 a rank, AdamW as it is."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 101} if small else {}
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **sizes)
    model = DistributedDataParallel(GPT2LMHeadModel(config).to(DEVICE), **RANKED)
    torch.manual_seed(1 + dist.get_rank())
    tokens = torch.randint(config.vocab_size, (4, 64), device=DEVICE)
    return training(
        model, lambda net: net(input_ids=tokens, labels=tokens).loss, torch.optim.AdamW(model.parameters(), lr=1e-4)
    )


def fsdp_gpt2(small: bool) -> Program:
    torch.manual_seed(0)
    model, mesh = gpt(small), dist.init_device_mesh(DEVICE.type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.manual_seed(1 + dist.get_rank())
    return training(
        model,
        language(4, 16 if small else 64, model.tokens.num_embeddings),
        torch.optim.AdamW(model.parameters(), lr=1e-4),
    )


def cut(model: Gpt) -> Gpt:
    """Attention and feed-forward over the ranks, as the tutorial of tensor parallelism does."""
    mesh = dist.init_device_mesh(DEVICE.type, (dist.get_world_size(),))
    plan = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
    plan |= {"attention.out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return model


def parallel_gpt2(small: bool) -> Program:
    torch.manual_seed(0)
    model = cut(gpt(small))
    torch.manual_seed(1)  # tensor-parallel ranks have the same data
    loss = language(4, 16 if small else 64, model.tokens.num_embeddings)
    return training(model, loss, torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False))


def parallel_decoding(small: bool) -> Program:
    """Greedy, over a window of the last tokens."""
    torch.manual_seed(0)
    model = cut(gpt(small)).eval()
    torch.manual_seed(1)
    seen = [torch.randint(model.tokens.num_embeddings, (1, 32), device=DEVICE)]

    @torch.no_grad()
    def step(number: int) -> None:
        following = model(seen[-1])[:, -1].argmax(-1, keepdim=True)
        seen.append(torch.cat([seen[-1][:, 1:], following], 1))
        if number % READ_EVERY == 0:
            following.item()

    return step, lambda: [whole(t) for t in seen], model


PROGRAMS = {f.__name__: f for f in (ddp_mlp, ddp_cnn, ddp_gpt2, fsdp_gpt2, parallel_gpt2, parallel_decoding)}
DEVICE = torch.device("cpu")
RANKED: dict[str, Any] = {}


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def runs(program: Program, steps: int, count: int, around: Callable[[], Any]) -> tuple[list[float], list[list[Tensor]]]:
    """Seconds of each run, and the state after it."""
    step, state, _ = program
    took, states = [], []
    for _ in range(count):
        dist.barrier()
        synchronize()
        began = time.perf_counter()
        with around():
            for number in range(steps):
                step(number)
        synchronize()
        took.append(time.perf_counter() - began)
        states.append(state())
    return took, states


def same(a: list[list[Tensor]], b: list[list[Tensor]]) -> list[bool]:
    pairs = zip(a, b, strict=False)
    return [len(x) == len(y) and all(torch.equal(s, t) for s, t in zip(x, y, strict=True)) for x, y in pairs]


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    reports: list[Any] = []

    @contextlib.contextmanager
    def under_grape() -> Iterator[None]:
        with grape.session() as session:
            yield
        reports.append(session.report)

    plain_s, plain = runs(PROGRAMS[name](arguments.small), arguments.steps, arguments.runs, contextlib.nullcontext)
    again_s, again = runs(PROGRAMS[name](arguments.small), arguments.steps, 1, contextlib.nullcontext)
    grape_s, seen = runs(PROGRAMS[name](arguments.small), arguments.steps, arguments.runs, under_grape)
    found: dict[str, Any] = {
        "repeatable": all(same(plain, again)),
        "identical": all(same(plain, seen)),
        "plain_s": plain_s + again_s,
        "grape_s": grape_s,
        "verdicts": [report.verdict for report in reports],
        "streams": [
            {
                key: sum(getattr(s, key) for s in report.evidence.streams)
                for key in ("operators", "matched", "segments", "diverged")
            }
            for report in reports
        ],
    }
    if arguments.compile:
        step, state, model = PROGRAMS[name](arguments.small)
        try:
            model.compile()
            compiled_s, _ = runs((step, state, model), arguments.steps, 2, contextlib.nullcontext)
            found["compiled_s"] = compiled_s
        except Exception as error:
            found["compiled_failed"] = f"{type(error).__name__}: {error}"[:400]
    return found


def rank_main(arguments: argparse.Namespace) -> None:
    """One rank: measures each program and leaves what it found in a file."""
    global DEVICE, RANKED
    rank = int(os.environ["RANK"])
    if arguments.backend == "nccl":
        DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(DEVICE)
        RANKED = {"device_ids": [DEVICE.index]}
        dist.init_process_group("nccl", device_id=DEVICE)
    else:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    found = {}
    began = time.perf_counter()
    for name in arguments.only:
        late = torch.tensor(time.perf_counter() - began > arguments.seconds, dtype=torch.int32, device=DEVICE)
        dist.all_reduce(late)
        if late.item():
            break
        try:
            found[name] = measure(name, arguments)
        except ImportError as error:
            found[name] = {"skipped": str(error)}
        torch.compiler.reset()
        (arguments.folder / f"{rank}.json").write_text(json.dumps(found))
        if rank == 0:
            print(name, json.dumps({k: v for k, v in found[name].items() if k != "streams"}), flush=True)
    dist.destroy_process_group()


def together(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What all ranks found of one program."""
    if any("skipped" in rank for rank in ranks):
        return ranks[0]
    slowest = {
        key: [max(times) for times in zip(*(rank[key] for rank in ranks), strict=True)]
        for key in ("plain_s", "grape_s")
    }
    row = {
        "repeatable": all(rank["repeatable"] for rank in ranks),
        "identical": all(rank["identical"] for rank in ranks),
        "speedup": statistics.median(slowest["plain_s"][1:]) / slowest["grape_s"][-1],
        **slowest,
        **{key: [rank[key] for rank in ranks] for key in ("verdicts", "streams")},
    }
    if all("compiled_s" in rank for rank in ranks):
        row["compiled_s"] = [max(times) for times in zip(*(rank["compiled_s"] for rank in ranks), strict=True)]
    elif "compiled_failed" in ranks[0]:
        row["compiled_failed"] = ranks[0]["compiled_failed"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, default=240.0, help="no program begins later")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--out", type=Path, default=result_path("several_gpus"))
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.backend = "nccl" if torch.cuda.device_count() >= arguments.ranks else "gloo"
    if arguments.folder is not None:
        return rank_main(arguments)
    with tempfile.TemporaryDirectory() as folder:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29400 + os.getpid() % 1000)}
        children = []
        for rank in range(arguments.ranks):
            environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(arguments.ranks), **address}
            command = [sys.executable, *sys.argv, "--folder", folder]
            children.append(subprocess.Popen(command, env={**os.environ, **environment}))
        codes = [child.wait() for child in children]
        files = [Path(folder) / f"{rank}.json" for rank in range(arguments.ranks)]
        ranks = [json.loads(file.read_text()) if file.exists() else {} for file in files]
    rows = {name: together([rank[name] for rank in ranks]) for name in ranks[0] if all(name in rank for rank in ranks)}
    about = {"machine": machine(), "backend": arguments.backend, "ranks": arguments.ranks, "steps": arguments.steps}
    write(arguments.out, {**about, "programs": rows})
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
