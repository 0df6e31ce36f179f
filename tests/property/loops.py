"""Random loops around a region: what happens to its results before they come back as arguments, and who keeps them.

A loop carries a state of three tensors. Between two calls of the region each of them passes through operators, some of
which a predictor may take over; results are kept, viewed, saved for autograd and dropped at random. The same loop runs
eagerly and through Grape, and after each call everything that is still held must have the same bits.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st

import grape.runtime.alias.predictor as _predictor
from grape.runtime import GraphedFunction
from grape.runtime.backends.protocol import Backend
from grape.runtime.regions import replays as _replays

from .programs import eager_to_graph, same

__all__ = ["Loop", "Run", "run_loop"]

WIDTH = 4
Values = torch.Tensor

BETWEEN: dict[str, Callable[[Values, Values, int], Values]] = {
    "nothing": lambda a, order, t: a,
    "index_select": lambda a, order, t: a.index_select(0, order),
    "torch.index_select": lambda a, order, t: torch.index_select(a, 0, order),
    "item": lambda a, order, t: a[order],
    "clone": lambda a, order, t: a.clone(),
    "torch.clone": lambda a, order, t: torch.clone(a),
    "add": lambda a, order, t: torch.add(a, 0.5),
    "add itself": lambda a, order, t: torch.add(a, a),
    "sub": lambda a, order, t: torch.sub(a, a.abs()),
    "mul": lambda a, order, t: torch.mul(a, 0.5),
    "div": lambda a, order, t: torch.div(a, 2),
    "method add": lambda a, order, t: a.add(1),
    "operator": lambda a, order, t: a + 0.5,
    "cat": lambda a, order, t: torch.cat([a[1:], a[:1]], 0),
    "cat of clones": lambda a, order, t: torch.cat([a[1:].clone(), a[:1].clone()], 0),
    "stack": lambda a, order, t: torch.stack([row.clone() for row in a], 0) if len(a) else a,
    "where": lambda a, order, t: torch.where(a > 0, a, a * 2),
    "gather": lambda a, order, t: a.gather(1, a.argsort(1)),
    "torch.gather": lambda a, order, t: torch.gather(a, 1, a.argsort(1)),
    "transposed": lambda a, order, t: a.t().contiguous().t(),
    "contiguous": lambda a, order, t: a.flip(1).contiguous(),
    "double and back": lambda a, order, t: a.double().float(),
    "view": lambda a, order, t: a.clone().view(-1, WIDTH),
    "sometimes": lambda a, order, t: torch.index_select(a, 0, order) if t % 3 else a,
    "out": lambda a, order, t: torch.add(a, 1, out=torch.empty_like(a)),
    "in place after": lambda a, order, t: torch.mul(a, 0.5).add_(1),
    "twice": lambda a, order, t: torch.mul(a + 1, 0.5),
    "eager alias": lambda a, order, t: torch.index_select(a, 0, order)[:],
}
REGIONS: dict[str, Callable[[Values, Values, Values, Values], tuple[Values, ...]]] = {
    "grow": lambda w, x, k, v: (torch.tanh(x @ w), torch.cat([k, (x @ w)[:1]]), torch.cat([v, x[:1] * 2])),
    "recur": lambda w, x, k, v: (torch.tanh(x @ w + k), torch.sigmoid(k @ w + v), torch.tanh(v * 0.5 + x)),
    "window": lambda w, x, k, v: (x @ w, torch.cat([k[1:], x[:1]]), torch.cat([v[1:], (k @ w)[:1]])),
    "in place": lambda w, x, k, v: (torch.tanh(x @ w), k.mul_(0.5).add_(x), torch.relu(v @ w + k)),
    "views": lambda w, x, k, v: ((x @ w).tanh().t().contiguous().t(), torch.cat([x, k], 1)[:, :WIDTH], (v @ w) * 1),
    "shrink": lambda w, x, k, v: (x @ w, k[: max(3, len(k) - 1)] * 0.5, torch.cat([v, v])[: len(k)] + 1),
}
KEEPS = ("nothing", "first", "second", "third", "views", "all", "drop", "saved")


@dataclasses.dataclass(frozen=True)
class Loop:
    """A region, what happens to each of its three results, what is kept, and how often the loop runs."""

    region: str
    between: tuple[str, str, str]
    keeps: tuple[str, ...]
    rows: int
    passes: int
    grad: bool

    @staticmethod
    def strategy() -> st.SearchStrategy[Loop]:
        between = st.sampled_from(sorted(BETWEEN))
        return st.builds(
            Loop,
            region=st.sampled_from(sorted(REGIONS)),
            between=st.tuples(between, between, between),
            keeps=st.lists(st.sampled_from((*KEEPS[:1] * 6, *KEEPS)), min_size=4, max_size=9).map(tuple),
            rows=st.integers(3, 4),
            passes=st.integers(3, 5),
            grad=st.booleans(),
        )


@dataclasses.dataclass
class Run:
    """What a loop did under Grape."""

    replays: int = 0
    counts: Counter[str] = dataclasses.field(default_factory=Counter)


class _World:
    def __init__(self, loop: Loop, call: Callable[..., Any], device: torch.device) -> None:
        self.loop, self.call, self.device = loop, call, device
        self.kept: list[Any] = []
        self.scale = torch.ones(WIDTH, device=device, requires_grad=loop.grad)

    def begin(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        rows = self.loop.rows
        self.state = tuple(torch.randn(rows, WIDTH, generator=generator).to(self.device) for _ in range(3))

    def step(self, weight: Values, t: int) -> None:
        result = self.call(weight, *self.state)
        self.keep(self.loop.keeps[t % len(self.loop.keeps)], result)
        order = [(i * 2 + t) % max(1, len(part)) for part in result[:1] for i in range(len(part))]
        state = []
        for name, part in zip(self.loop.between, result, strict=True):
            index = torch.tensor(order[: len(part)] or [0], device=self.device) % max(1, len(part))
            state.append(BETWEEN[name](part, index, t))
        self.state = tuple(state)

    def keep(self, what: str, result: tuple[Values, ...]) -> None:
        if what in ("first", "second", "third"):
            self.kept.append(result[("first", "second", "third").index(what)])
        elif what == "views":
            self.kept.append([part[1:] for part in result])
        elif what == "all":
            self.kept.append(result)
        elif what == "saved":
            with torch.enable_grad():  # autograd alone refers to the result
                self.kept.append((result[1].detach()[:1] * self.scale).sum())
        elif what == "drop":
            self.kept.clear()


def _gradient(total: torch.Tensor, scale: torch.Tensor) -> torch.Tensor | type[Exception]:
    """Where the loop wrote what autograd had saved, autograd says so, on both sides."""
    try:
        return torch.autograd.grad(total, scale)[0]
    except RuntimeError as error:
        return type(error)


def run_loop(loop: Loop, backend: Backend) -> Run:
    """Run it eagerly and through Grape; raise AssertionError at the first difference."""
    device = backend.device
    weight = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(7)).to(device)
    body = REGIONS[loop.region]

    def region(w: Values, x: Values, k: Values, v: Values) -> tuple[Values, ...]:
        return body(w, x, k, v)

    graphed = GraphedFunction(region, backend=backend, tolerance=0.0)
    eager, mine = _World(loop, region, device), _World(loop, graphed, device)
    run = Run()
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(eager_to_graph())
        for module in (_replays, _predictor):
            stack.enter_context(mock.patch.object(module, "MIN_BYTES", 1))
        stack.enter_context(mock.patch.object(_predictor, "WEIGHED", 1 << 30))
        try:
            for number in range(loop.passes):
                eager.begin(number)
                mine.begin(number)
                for t in range(len(loop.keeps) + 2):
                    eager.step(weight, t)
                    mine.step(weight, t)
                    same((eager.state, eager.kept), (mine.state, mine.kept), f"pass {number}, call {t}")
            for one, other in zip(eager.kept, mine.kept, strict=True):
                if isinstance(one, torch.Tensor) and one.requires_grad:
                    same(_gradient(one, eager.scale), _gradient(other, mine.scale), "gradient")
            evidence = graphed.evidence()
            assert evidence is not None
            run.replays = evidence.replays
            run.counts["hits"] += evidence.alias_hits
            run.counts["misses"] += evidence.alias_misses
            run.counts["spared"] += evidence.replays > 0 and evidence.copied_bytes_per_call == 0
        finally:
            graphed.release()
    return run
