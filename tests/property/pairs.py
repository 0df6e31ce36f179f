"""Two copies of a training program in which a module is called and the step goes on in plain Python around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from grape.runtime import GraphedFunction
from grape.runtime.backends.protocol import Backend
from grape.runtime.backends.reference.backend import ReferenceBackend
from tests.property.programs import World, eager_to_graph, same

__all__ = ["PairTwins", "Step"]

Step = Callable[[World, Callable[..., Any], int], Any]
"""One step of a world; the module is called through the second argument, and what it returns is compared."""


class PairTwins:
    """`build` makes a world with a `net`; `step` is run on both, one calling the module, the other its graphs."""

    def __init__(self, build: Callable[[], World], step: Step, backend: Backend | None = None) -> None:
        self.backend = backend or ReferenceBackend(poison=True)
        self.step = step
        self.worlds: list[World] = []
        for _ in range(2):
            torch.manual_seed(1)
            self.worlds.append(build())
        eager, mine = self.worlds
        self.graphed = GraphedFunction(mine.net, backend=self.backend, tolerance=0.0)
        self._calls: list[Callable[..., Any]] = [eager.net, self._call]
        self.steps = self.replays_at_end = 0
        self.kept: list[tuple[Any, Any]] = []

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        with eager_to_graph():
            return self.graphed(*args, **kwargs)

    @property
    def replays(self) -> int:
        evidence = self.graphed.evidence()
        return evidence.replays if evidence is not None else 0

    @property
    def refused(self) -> Any:
        evidence = self.graphed.evidence()
        return evidence.refused if evidence is not None else None

    def run(self, steps: int, step: Step | None = None) -> int:
        """So many steps on both; how many calls of the module were replayed."""
        before = self.replays
        for _ in range(steps):
            self.once(step or self.step)
        return self.replays - before

    def once(self, step: Step) -> None:
        self.steps += 1
        random = self.backend.rng_state()
        outcomes, states, errors = [], [], []
        for world, call in zip(self.worlds, self._calls, strict=True):
            self.backend.set_rng_state(random)
            result, error = None, None
            try:
                result = step(world, call, self.steps)
            except RuntimeError as raised:
                error = raised
            outcomes.append(result)
            errors.append(error)
            states.append(self.backend.rng_state())
        if (errors[0] is None) != (errors[1] is None):
            raise AssertionError(f"step {self.steps}: eager raised {errors[0]}, Grape {errors[1]}") from errors[1]
        self.last_errors = errors
        if errors[0] is not None:  # raised in the middle of a backward, or before it began
            for world in self.worlds:
                world.net.zero_grad()
        self.kept.append((outcomes[0], outcomes[1]))
        self.compare()
        one, other = states if isinstance(states[0], tuple) else [(state,) for state in states]
        assert all(map(torch.equal, one, other)), f"step {self.steps}: the random state differs"

    def both(self, act: Callable[[World], Any]) -> None:
        for world in self.worlds:
            act(world)

    def compare(self) -> None:
        mine, theirs = ([_plain(kept[i]) for kept in self.kept] for i in range(2))
        same(mine, theirs, f"step {self.steps}, results", versions=False)  # autograd adds up parts in place, or not
        for (name, one), (_, other) in zip(*map(_state, self.worlds), strict=True):
            same(one, other, f"step {self.steps}, {name}", versions=False)

    def close(self) -> None:
        self.replays_at_end = self.replays
        self.kept.clear()
        self.graphed.release()


def _plain(value: Any) -> Any:
    """Results without their graphs, whose nodes have other names."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return value


def _state(world: World) -> list[tuple[str, Any]]:
    net: nn.Module = world.net
    found: list[tuple[str, Any]] = [(name, value.detach()) for name, value in net.state_dict().items()]
    found += [(f"{name}.grad", p.grad) for name, p in net.named_parameters()]
    optimizer = getattr(world, "optimizer", None)
    if optimizer is not None:
        states = optimizer.state_dict()["state"].items()
        found += [(f"state {number} {key}", value) for number, one in states for key, value in one.items()]
    return found
