"""Proves a graph: one replay from the inputs, state and random state of the eager call, compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

import torch

from ....model import Later, Reason, Refused, RetryLater
from ....originals import perf_counter
from ....quiet import without_warnings
from ...buffers.placeholders import Placeholders
from ...guarding.structure import Layout, flatten
from ...replaying.building import rebuild
from ...training import GradientCapture
from ..request import EagerRun, Request
from ..running.in_step import CapturedRun
from ..snapshot import Snapshot
from ..stop import Stop
from .compare import documented, first_mismatch, nondeterministic_in, within

EAGER_RUNS = 4
"""Where a replay differs, so many more eager runs tell whether eager differs from itself."""
PATIENCE = 12, 0.5
"""Where it does, so many runs at most, for so many seconds, until a replay gives the bits of one."""


@dataclass(eq=False)
class Verification:
    """Of one captured run against its eager run."""

    request: Request
    layout: Layout
    eager: EagerRun
    run: CapturedRun
    _: KW_ONLY
    snapshot: Snapshot
    placeholders: Placeholders
    gradients: GradientCapture
    replay_ms: float = 0.0
    """Milliseconds that the last replay took on the device."""
    unfaithful: frozenset[object] = frozenset()
    """Operators whose `out=` forms may be why a replay differed."""
    faithful: frozenset[object] = frozenset()
    """Those whose `out=` forms were right, bit for bit."""

    def verify(self, launch: Callable[[], None]) -> str:
        """Replay with `launch` and compare: "identical" or "within <tolerance>". Raises `Stop` where it differs."""
        with self.request.backend.bounded(self.eager.most_iterations) as endless:
            return self._compare(launch, endless)

    def _compare(self, launch: Callable[[], None], endless: Callable[[], bool]) -> str:
        trace, tolerance = self.eager.call.trace, self.request.tolerance
        try:
            self.snapshot.rewind()
            self.request.backend.set_rng_state(self.eager.random_before)
            timer = self.request.backend.timer()
            timer.start()
            launch()
            timer.stop()
            self.run.draws.repeat()
            if not _same_state(self.request.backend.rng_state(), self.eager.random_after):
                raise Stop(Refused.because(Reason.REPLAY_DRAWS))
            pairs = self._pairs()
            mismatch = first_mismatch(pairs)
            if endless():
                raise Stop(Refused.because(Reason.ENDLESS, iterations=self.eager.most_iterations))
            self.replay_ms = timer.elapsed_ms()
            names = nondeterministic_in(trace) if mismatch is not None else ()
            close = bool(names) and tolerance > 0 and within(pairs, tolerance)
        finally:
            self.snapshot.settle()
        redirected = frozenset(self.eager.call.functions[ordinal] for ordinal in self.run.redirected)
        if mismatch is None or (not close and self._eager_again(launch)):
            self.faithful = redirected
            return "identical"
        if close:
            return f"within {tolerance:g}"
        paths = self.eager.after.paths
        where = f"`{paths[mismatch]}`" if mismatch < len(paths) else "a tensor that it writes"
        refused = Refused.because(Reason.REPLAY_DIFFERS, where=where, because=documented(names))
        if redirected:
            self.unfaithful = redirected
            raise Stop(RetryLater(later=Later.FORMS, refused=refused))
        raise Stop(refused if self.run.plan is None else RetryLater(later=Later.OVERLAP, refused=refused))

    def _pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        pairs = list(zip(self.eager.after.leaves, self.run.left, strict=True))
        pairs += list(zip(self.snapshot.after, self.snapshot.in_place, strict=True))
        pairs += self.gradients.pairs()
        return [(one.detach(), other.detach()) for one, other in pairs]

    def _eager_again(self, launch: Callable[[], None]) -> bool:
        """The replay differs: does eager differ from itself, and does a replay give the bits of another eager run?

        Some kernels do not repeat themselves (attention over a long cache, in half precision). Then the eager result
        at hand is one of several right ones, and replays are verified against further runs from the same inputs. Only
        where nothing but results is written and nothing random is drawn. Raises where eager differs from itself, and
        no replay gave the bits of any run: a later call may try again.
        """
        trace = self.eager.call.trace
        if self.snapshot.writes or trace.needs_grad or any(op.draws for op in trace.ops):
            return False
        if not _equal(self.layout.leaves, self.placeholders.tensors):
            return False  # other inputs, of which the runs below would be right
        seen: list[Sequence[torch.Tensor]] = [self.eager.after.leaves]
        most, seconds = PATIENCE
        began = perf_counter()
        for run in range(most):
            if run >= EAGER_RUNS and (len(seen) == 1 or perf_counter() - began > seconds):
                break
            args, kwargs = rebuild(self.layout.root, self.placeholders.tensors)
            with without_warnings():
                result = self.request.function(*args, **kwargs)
            again = flatten((result, args, kwargs), "result").leaves
            if all(not _equal(again, known) for known in seen):
                seen.append(again)
            for _ in range(2 if len(seen) > 1 else 0):
                launch()
                if any(_equal(known, self.run.left) for known in seen):
                    return True
        if len(seen) > 1:
            raise Stop(RetryLater(later=Later.UNSETTLED, refused=Refused.because(Reason.UNSETTLED)))
        return False


def _equal(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return first_mismatch([(a.detach(), b.detach()) for a, b in zip(one, other, strict=True)]) is None


def _same_state(one: object, other: object) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return all(map(torch.equal, one, other))
    assert isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    return torch.equal(one, other)
