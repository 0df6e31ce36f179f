"""Breaks captures and replays of one backend at a chosen moment, for tests of recovery on both backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
        replay = graph.replay

        def replayed() -> None:
            self.replays += 1
            if self._replay_act is not None and self._times > 0:
                self._spring(self._replay_act)
            else:
                replay()

        graph.replay = replayed
        return graph, result


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
