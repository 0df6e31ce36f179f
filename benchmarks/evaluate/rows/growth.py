"""How costs grow: with the operators of a step, with shapes, with parameters, with cells."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from ..job import LOOP, Group, Job, Size, inference, training

__all__ = ["GROWTH", "POINTS"]

GROWTH = Group("growth", "How costs grow", columns=("grape",))

POINTS = {
    "operators": (10, 100, 1_000, 10_000, 100_000),
    "shapes": (1, 10, 100, 1_000, 10_000),
    "parameters": (10, 100, 1_000, 10_000),
    "cells": (1, 10, 100),
}


class Chain(nn.Module):
    """`count` small operators, one after the other."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.count // 2):
            x = (x * 0.99).sin()
        return x


def operators(count: int, size: Size) -> Job:
    job = inference(
        size, Chain(count), [(torch.rand(1024, device=size.device),)] * max(4, min(size.of(100, 4), 10_000 // count))
    )
    job.fixed = True
    return job


def shapes(count: int, size: Size) -> Job:
    """Each step of a run has a shape of its own; each shape comes once a run, at least 10 in all."""
    model = nn.Sequential(*[part for _ in range(8) for part in (nn.Linear(64, 64), nn.ReLU())]).to(size.device)
    rows = torch.rand(count + 8, 64, device=size.device)
    job = inference(size, model, [(rows[: 8 + index],) for index in range(count)] * max(1, 10 // count))
    job.fixed = True
    return job


class Many(nn.Module):
    """`count` parameters of one layer each, as deep as half of them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(count // 2)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh() * 0.01
        return x


def parameters(count: int, size: Size) -> Job:
    model = Many(count).to(size.device)
    inputs = [(torch.rand(8, 16, device=size.device),)] * max(3, min(size.of(60, 3), 5_000 // count))
    job = training(size, model, inputs, lambda x: model(x).square().mean(), make=torch.optim.SGD, autocast=False)
    job.fixed = True
    return job


def cells(count: int, size: Size) -> Job:
    """As many cells of their own source, each a loop of 20 steps."""
    count = size.of(count, min(count, 3))
    job = operators(200, size)
    job.names["inputs"] = job.names["inputs"][:20]
    job.cells = [LOOP.replace("results", f"results_{index}") for index in range(count - 1)] + [LOOP]
    job.steps = count * 20
    return job


def at(make: Callable[[int, Size], Job], count: int, size: Size) -> Job:
    return make(min(count, 20) if size.quick else count, size)


for _kind, _make in (("operators", operators), ("shapes", shapes), ("parameters", parameters), ("cells", cells)):
    for _count in POINTS[_kind]:
        GROWTH.add(f"{_kind}_{_count}", f"{_count:,} {_kind}", partial(at, _make, _count))
