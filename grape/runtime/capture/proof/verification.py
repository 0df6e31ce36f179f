"""Proves a graph: one replay from the inputs, state and random state of the eager call, compared bit for bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ....model import Later, Reason, Refused, RetryLater
from ....quiet import without_warnings
from ...buffers.placeholders import Placeholders
from ...guarding.rebuilding import rebuild
from ...guarding.structure import Layout, flatten
from ...training import GradientCapture
from ..request import EagerRun, Request
from ..running.in_step import CapturedRun
from ..snapshot import Snapshot
from ..stop import Stop
from .compare import first_mismatch, nondeterministic_in, within

__all__ = ["Verification"]

EAGER_RUNS = 4
"""Where a replay differs, so many more eager runs tell whether eager differs from itself."""
PATIENCE = 12, 0.5
"""Where it does, so many runs at most, for so many seconds, until a replay gives the bits of one."""


class Verification:
    """Of one captured run against its eager run."""

    def __init__(
        self,
        request: Request,
        layout: Layout,
        eager: EagerRun,
        run: CapturedRun,
        *,
        snapshot: Snapshot,
        placeholders: Placeholders,
        gradients: GradientCapture,
    ) -> None:
        self._request = request
        self._backend = request.backend
        self._layout = layout
        self._eager = eager
        self._run = run
        self._snapshot = snapshot
        self._placeholders = placeholders
        self._gradients = gradients
        self.replay_ms = 0.0
        """Milliseconds that the last replay took on the device."""
        self.unfaithful: frozenset[object] = frozenset()
        """Operators whose `out=` forms may be why a replay differed."""
        self.faithful: frozenset[object] = frozenset()
        """Those whose `out=` forms were right, bit for bit."""

    def verify(self, launch: Callable[[], None]) -> str:
        """Replay with `launch` and compare: "identical" or "within <tolerance>". Raises `Stop` where it differs."""
        with self._backend.bounded(self._eager.most_iterations) as endless:
            return self._compare(launch, endless)

    def _compare(self, launch: Callable[[], None], endless: Callable[[], bool]) -> str:
        trace, tolerance = self._eager.call.trace, self._request.tolerance
        try:
            self._snapshot.rewind()
            self._backend.set_rng_state(self._eager.random_before)
            timer = self._backend.timer()
            timer.start()
            launch()
            timer.stop()
            self._run.draws.repeat()
            if not _same_state(self._backend.rng_state(), self._eager.random_after):
                raise Stop(Refused.because(Reason.REPLAY_DRAWS))
            pairs = self._pairs()
            mismatch = first_mismatch(pairs)
            if endless():
                raise Stop(Refused.because(Reason.ENDLESS, iterations=self._eager.most_iterations))
            self.replay_ms = timer.elapsed_ms()
            names = nondeterministic_in(trace) if mismatch is not None else ()
            close = bool(names) and tolerance > 0 and within(pairs, tolerance)
        finally:
            self._snapshot.settle()
        redirected = frozenset(self._eager.call.functions[ordinal] for ordinal in self._run.redirected)
        if mismatch is None or (not close and self._eager_again(launch)):
            self.faithful = redirected
            return "identical"
        if close:
            return f"within {tolerance:g}"
        because = f"; {', '.join(names)} is documented as non-deterministic (see --tolerance)" if names else ""
        paths = self._eager.after.paths
        where = paths[mismatch] if mismatch < len(paths) else "a written tensor"
        refused = Refused.because(Reason.REPLAY_DIFFERS, where=where, because=because)
        if redirected:
            self.unfaithful = redirected
            raise Stop(RetryLater(later=Later.FORMS, refused=refused))
        raise Stop(refused)

    def _pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        pairs = list(zip(self._eager.after.leaves, self._run.left, strict=True))
        pairs += list(zip(self._snapshot.after, self._snapshot.in_place, strict=True))
        pairs += self._gradients.pairs()
        return [(one.detach(), other.detach()) for one, other in pairs]

    def _eager_again(self, launch: Callable[[], None]) -> bool:
        """The replay differs: does eager differ from itself, and does a replay give the bits of another eager run?

        Some kernels do not repeat themselves (attention over a long cache, in half precision). Then the eager result
        at hand is one of several right ones, and replays are verified against further runs from the same inputs. Only
        where nothing but results is written and nothing random is drawn. Raises where eager differs from itself, and
        no replay gave the bits of any run: a later call may try again.
        """
        trace = self._eager.call.trace
        if self._snapshot.writes or trace.needs_grad or any(op.draws for op in trace.ops):
            return False
        if not _equal(self._layout.leaves, self._placeholders.tensors):
            return False  # other inputs, of which the runs below would be right
        seen: list[Sequence[torch.Tensor]] = [self._eager.after.leaves]
        most, seconds = PATIENCE
        began = time.perf_counter()
        for run in range(most):
            if run >= EAGER_RUNS and (len(seen) == 1 or time.perf_counter() - began > seconds):
                break
            args, kwargs = rebuild(self._layout.root, self._placeholders.tensors)
            with without_warnings():
                result = self._request.function(*args, **kwargs)
            again = flatten((result, args, kwargs), "result").leaves
            if all(not _equal(again, known) for known in seen):
                seen.append(again)
            for _ in range(2 if len(seen) > 1 else 0):
                launch()
                if any(_equal(known, self._run.left) for known in seen):
                    return True
        if len(seen) > 1:
            raise Stop(RetryLater(later=Later.UNSETTLED, refused=Refused.because(Reason.UNSETTLED)))
        return False


def _equal(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return first_mismatch([(a.detach(), b.detach()) for a, b in zip(one, other, strict=True)]) is None


def _same_state(one: Any, other: Any) -> bool:
    return (
        all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        if isinstance(one, tuple)
        else torch.equal(one, other)
    )
