"""Breaks captures and replays at a chosen moment, and compares with an eager twin; for both backends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from grape.runtime import GraphedFunction


class Trap(TorchDispatchMode):
    """Does `act` when operator number `at` is dispatched, instead of it or before it."""

    def __init__(self, act: Callable[[], Any], at: int) -> None:
        super().__init__()
        self._act = act
        self._left = at

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._left -= 1
        if self._left == 0:
            self._act()
        return func(*args, **(kwargs or {}))


class Sabotage:
    """`captures` and `replays` count what was tried. The next `times` of either meet `act`."""

    def __init__(self, backend: Any) -> None:
        self.captures = self.replays = self.sprung = 0
        self._original = backend.capture
        self._capture_act: tuple[Callable[[], Any], int] | None = None
        self._replay_act: Callable[[], Any] | None = None
        self._times = 0
        backend.capture = self._capture

    def in_capture(self, act: Callable[[], Any], *, at: int = 2, times: int = 1) -> None:
        """While a body is captured, when its operator number `at` is dispatched."""
        self._capture_act, self._times = (act, at), times

    def in_replay(self, act: Callable[[], Any], *, times: int = 1) -> None:
        """Instead of a replay of a graph that is captured from now on."""
        self._replay_act, self._times = act, times

    def _spring(self, act: Callable[[], Any]) -> None:
        self._times -= 1
        self.sprung += 1
        act()

    def _capture(self, body: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        self.captures += 1
        chosen = body
        if self._capture_act is not None and self._times > 0:
            act, at = self._capture_act

            def chosen() -> Any:
                with Trap(lambda: self._spring(act), at):
                    return body()

        graph, result = self._original(chosen, *args, **kwargs)
        instantiate = getattr(graph, "instantiate", None)
        if instantiate is None:
            self._arm(graph)
        else:
            graph.instantiate = lambda: self._arm(instantiate())
        return graph, result

    def _arm(self, launched: Any) -> Any:
        """What launches a graph meets the act: its executable, or the graph itself where it has one of its own."""
        replay = launched.replay

        def replayed() -> None:
            self.replays += 1
            if self._replay_act is not None and self._times > 0:
                self._spring(self._replay_act)
            else:
                replay()

        launched.replay = replayed
        return launched


def raising(error: type[BaseException], *arguments: str) -> Callable[[], None]:
    """Raises a new one each time: an exception that is kept keeps the frames that it went through."""

    def act() -> None:
        raise error(*arguments)

    return act


def warm(graphed: GraphedFunction, call: Callable[[], Any], limit: int = 30) -> None:
    """Call until a graph has served two calls. Fails where none does."""
    for _ in range(limit):
        call()
        evidence = graphed.evidence()
        if evidence is not None and evidence.replays >= 2:
            return
    raise AssertionError(f"no replay after {limit} calls: {evidence.refused if evidence else None}")


ERRORS: dict[str, tuple[type[Exception], str]] = {
    "exception": (ZeroDivisionError, "division by zero"),
    "runtime error": (RuntimeError, "CUDA error: operation failed"),
    "out of device memory": (torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 20.00 GiB."),
    "out of host memory": (MemoryError, ""),
}


class Counter(nn.Module):
    """Writes a buffer of its own and draws random numbers: all that a failed capture must not do twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.linear(x))
        self.total += y.sum(0)
        return nn.functional.dropout(y, 0.5) + self.total


class Pair:
    """The module under Grape and its eager twin; every call is compared: result, buffer, random state."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        torch.manual_seed(0)
        self.eager, self.module = Counter().to(backend.device), Counter().to(backend.device)
        self.module.load_state_dict(self.eager.state_dict())
        self.graphed = GraphedFunction(self.module, backend=backend, tolerance=0.0)
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.number = 0

    def call(self, rows: int = 3, *, interrupt: type[BaseException] | None = None) -> None:
        """One call of each. `interrupt` may end Grape's: then what the eager run did is still to be done, once."""
        self.number += 1
        x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(self.number)).to(self.backend.device)
        before = self.backend.rng_state()
        expected = self.eager(x)
        after = self.backend.rng_state()
        self.backend.set_rng_state(before)
        with suppress(interrupt) if interrupt is not None else nullcontext():
            self.kept.append((expected, self.graphed(x.clone())))
        assert same_state(self.backend.rng_state(), after), "the random stream went another way"
        self.agree()

    def agree(self) -> None:
        assert all(one.equal(other) for one, other in self.kept), "a result, perhaps an earlier one, is wrong"
        assert self.eager.total.equal(self.module.total), "the buffer differs"

    def warm(self, rows: int = 3) -> None:
        warm(self.graphed, lambda: self.call(rows))

    def release(self) -> None:
        """Give back the graphs; the pool stays for the next capture."""
        region = self.graphed._region
        assert region is not None
        region.release()

    @property
    def evidence(self) -> Any:
        found = self.graphed.evidence()
        assert found is not None
        return found


def same_state(one: Any, other: Any) -> bool:
    """Whether two states of `Backend.rng_state` are equal."""
    pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
    return all(torch.equal(a, b) for a, b in pairs)


def captures_again(pair: Pair) -> None:
    """On the same backend another module is captured and replayed; the results of the first stay as they are."""
    pair.release()
    other = Pair(pair.backend)
    other.warm()
    other.call()
    other.release()
    pair.agree()
