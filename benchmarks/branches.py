"""Models with branches: eager, as one graph whose operators wait for each other, and as a graph with branches.

    python benchmarks/branches.py [--only NAME ...] [--seconds 200] [--small] [--out FILE]

In one process `grape.graph` serves each model twice, with `overlap=False` and as it is. Rounds of calls alternate
between the three, and all must return the same bits. Writes `results/branches.json`: machine, versions, medians and
samples in milliseconds per call, from an idle device to an idle device; device memory of the graphs; what was measured
when the graph was captured. `--small` takes small models on the CPU, where nothing runs beside anything.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from _machine import machine, result_path, write
from _measure import numbers, same, synchronize
from torch import Tensor, nn

import grape
from grape.runtime import GraphedFunction

Made = tuple[nn.Module, tuple[Tensor, ...]]
ROUNDS, CALLS = 9, 20


class Expert(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Mixture(nn.Module):
    """Small experts, all of which see every token: the gate weighs what they say."""

    def __init__(self, width: int, hidden: int, experts: int, layers: int) -> None:
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(width, experts) for _ in range(layers))
        self.layers = nn.ModuleList(nn.ModuleList(Expert(width, hidden) for _ in range(experts)) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for gate, experts in zip(self.gates, self.layers, strict=True):
            weights = torch.softmax(gate(x), -1)
            said = [weights[:, i : i + 1] * expert(x) for i, expert in enumerate(experts)]  # type: ignore[arg-type]
            x = x + torch.stack(said).sum(0)
        return x


class Recommender(nn.Module):
    """After DLRM: sparse features through tables, dense ones through layers, and all pairs of the two."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.dense = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU()
        )
        pairs = tables * (tables + 1) // 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )
        one, other = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("one", one)
        self.register_buffer("other", other)

    def forward(self, dense: Tensor, sparse: Tensor, offsets: Tensor) -> Tensor:
        x = self.dense(dense)
        features = torch.stack([x, *(table(sparse[i], offsets) for i, table in enumerate(self.tables))], 1)
        products = torch.bmm(features, features.transpose(1, 2))
        return self.top(torch.cat([x, products[:, self.one, self.other]], 1))


class TwoTowers(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(
                *[one for _ in range(layers) for one in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())]
            )
            for _ in range(2)
        )

    def forward(self, query: Tensor, item: Tensor) -> Tensor:
        one, other = self.towers
        return (one(query) * other(item)).sum(-1)


def vision(name: str, side: int) -> Callable[[bool], Made]:
    def make(small: bool) -> Made:
        import torchvision

        arguments = {"aux_logits": False, "init_weights": False} if name in ("inception_v3", "googlenet") else {}
        return getattr(torchvision.models, name)(weights=None, **arguments), (torch.randn(1, 3, side, side),)

    return make


def of_timm(name: str, side: int) -> Callable[[bool], Made]:
    def make(small: bool) -> Made:
        import timm

        return timm.create_model(name, pretrained=False), (torch.randn(1, 3, side, side),)

    return make


def mixture(small: bool) -> Made:
    sizes = (32, 64, 4, 2) if small else (256, 512, 16, 4)
    return Mixture(*sizes), (torch.randn(64, sizes[0]),)


def recommender(small: bool) -> Made:
    tables, rows, width, batch = (4, 50, 8, 8) if small else (26, 10_000, 64, 128)
    sparse = torch.randint(rows, (tables, 4 * batch))
    return Recommender(tables, rows, width), (torch.randn(batch, 13), sparse, torch.arange(0, 4 * batch, 4))


def two_towers(small: bool) -> Made:
    layers, width = (3, 32) if small else (12, 512)
    return TwoTowers(layers, width), (torch.randn(64, width), torch.randn(64, width))


def bert(small: bool) -> Made:
    from transformers import BertConfig, BertModel

    sizes: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2} if small else {}
    return BertModel(BertConfig(return_dict=False, **sizes)), (torch.randint(30_000, (1, 128)),)


MODELS: dict[str, Callable[[bool], Made]] = {
    "inception_v3": vision("inception_v3", 299),
    "googlenet": vision("googlenet", 224),
    "resnet50": vision("resnet50", 224),
    "hrnet_w18": of_timm("hrnet_w18", 224),
    "nasnetalarge": of_timm("nasnetalarge", 331),
    "mixture": mixture,
    "recommender": recommender,
    "two_towers": two_towers,
    "bert": bert,
}
SMALL = ("mixture", "recommender", "two_towers")


def tensors(value: object) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [one for part in value for one in tensors(part)]  # type: ignore[attr-defined]


def settle(served: GraphedFunction, inputs: tuple[Tensor, ...]) -> int:
    """Call until a graph serves; bytes that its capture has taken."""
    synchronize()
    before = torch.cuda.memory_reserved() if torch.cuda.is_available() else 0
    for _ in range(60):
        served(*inputs)
        evidence = served.evidence()
        if evidence is not None and evidence.replays > 3:
            break
    synchronize()
    return (torch.cuda.memory_reserved() if torch.cuda.is_available() else 0) - before


def measure(name: str, device: str, small: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model, inputs = MODELS[name](small)
    model, inputs = model.to(device).eval(), tuple(one.to(device) for one in inputs)
    chained, branched = grape.graph(model, overlap=False), grape.graph(model)
    ways: dict[str, Callable[..., object]] = {"eager": model, "chained": chained, "branched": branched}
    memory = {way: settle(ways[way], inputs) for way in ("chained", "branched")}  # type: ignore[arg-type]
    results = {way: [one.clone() for one in tensors(run(*inputs))] for way, run in ways.items()}
    samples: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, run in ways.items():
            synchronize()
            began = time.perf_counter()
            for _ in range(CALLS):
                run(*inputs)
            synchronize()
            samples[way].append((time.perf_counter() - began) / CALLS * 1e3)
    found = branched._region.captures.overlapped if branched._region is not None else None
    row = {
        "identical": all(same(results["eager"], results[way]) for way in ("chained", "branched")),
        "ms": {way: numbers(taken) for way, taken in samples.items()},
        "graph_bytes": memory,
        "measured_at_capture": asdict(found) if found is not None else None,
        "said": repr(branched),
    }
    chained.release()
    branched.release()
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(MODELS), default=None)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, default=result_path("branches"))
    arguments = parser.parse_args()
    torch.backends.cudnn.deterministic = True
    device = "cuda" if torch.cuda.is_available() and not arguments.small else "cpu"
    began, rows = time.monotonic(), {}
    for name in arguments.only or (SMALL if arguments.small else MODELS):
        if time.monotonic() - began > arguments.seconds:
            break
        try:
            with torch.no_grad():
                row = measure(name, device, arguments.small)
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {error}"[:500]}
        rows[name] = row
        if "ms" in row:
            eager, chained, branched = (row["ms"][way]["median"] for way in ("eager", "chained", "branched"))
            print(
                f"{name:14} eager {eager:.3f} chained {chained:.3f} branched {branched:.3f} ms: "
                f"{chained / branched:.2f}x, "
                f"{eager / branched:.2f}x eager, identical {row['identical']}, {row['graph_bytes']}, "
                f"{row['measured_at_capture']}",
                flush=True,
            )
        else:
            print(name, row["error"], flush=True)
        write(arguments.out, {"machine": machine(), "rows": rows})
    return 0 if all(row.get("identical") for row in rows.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
