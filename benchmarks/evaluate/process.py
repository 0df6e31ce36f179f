"""What the process of one row and one column does: plain runs, runs of the column beside them, what both gave."""

from __future__ import annotations

import gc
import os
import statistics
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from _machine import SHARED, machine
from _measure import same, synchronize

from .columns import COLUMNS, Variant
from .job import Job, NotPossible, Row, Size
from .rows.public import measure_program

__all__ = ["measure"]

RUN_S = 0.4
"""A plain run is made at least so long, where its length is free."""
MOST_STEPS = 400
ROUNDS = (3, 5)
"""So many timed runs of both, at least and at most."""
WARM = {"grape": (4, 8), "other": (2, 4)}
"""So many runs come before them, at least and at most."""
SETTLED = 0.05
"""Two runs that differ by less are alike."""


class Bench:
    """A shell, the job, and the clock that its cells are between."""

    def __init__(self, shell: Any, job: Job) -> None:
        self.shell, self.job = shell, job
        self.marks: list[float] = []
        if job.first:
            shell.user_ns.update(job.names)
            _run_cell(shell, job.first)

    def run(self, names: dict[str, Any], cells: Sequence[str], job: Job, head: str = "") -> tuple[float, float]:
        """Seconds of the cells' statements, and of the whole with reports, from an idle device to an idle device."""
        job.reset()
        torch.manual_seed(1)
        self.shell.user_ns.update({name: _own(value) for name, value in names.items()}, mark=self.mark)
        inner = whole = 0.0
        for cell in cells:
            self.marks.clear()
            synchronize()
            began = time.perf_counter()
            _run_cell(self.shell, f"{head}mark()\n{cell}mark()\n")
            synchronize()
            whole += time.perf_counter() - began
            inner += self.marks[-1] - self.marks[0]
        return inner, whole

    def mark(self) -> None:
        synchronize()
        self.marks.append(time.perf_counter())

    def plain(self) -> tuple[float, float]:
        return self.run(self.job.names, self.job.cells, self.job)

    def results(self, job: Job) -> list[torch.Tensor]:
        return job.results(self.shell.user_ns)

    def lengthen(self) -> None:
        """Inputs are repeated until a run is long enough to be timed."""
        job = self.job
        inputs = job.names.get("inputs")
        if inputs is None or job.fixed:
            job.steps = job.steps or len(inputs or [1])
            return
        took, _ = self.plain()
        times = min(MOST_STEPS // len(inputs) or 1, max(1, round(RUN_S / max(took, 1e-6))))
        job.names["inputs"] = inputs * times
        job.steps = len(inputs) * times


def _own(value: Any) -> Any:
    """Functions of a row are the person's, as those of a notebook are."""
    if type(value) is types.FunctionType and value.__module__.startswith("benchmarks.evaluate.rows"):
        value.__module__ = "__main__"
    return value


def _run_cell(shell: Any, source: str) -> None:
    from IPython.utils.capture import capture_output

    with capture_output():
        result = shell.run_cell(source, store_history=True)
    result.raise_error()


def measure(row: Row, column_name: str, size: Size, seconds: float, save: Callable[[dict[str, Any]], None]) -> None:
    """`save` gets what is known after each step of it: the process may end at any time. After `seconds` no round
    begins."""
    if row.program is not None:
        measure_program(row.program, size, seconds, save)
        return
    until = time.monotonic() + seconds
    column = COLUMNS[column_name]
    found: dict[str, Any] = {"machine": machine(), "outcome": "unfinished", "at": "building the row"}
    save(found)
    torch.backends.cudnn.deterministic = True  # else nobody leaves the same bits twice
    torch.manual_seed(0)
    job = row.build(size)
    bench = Bench(_shell(), job)
    found["at"] = "the plain run"
    bench.plain()
    if not size.quick:
        bench.lengthen()
    job.steps = job.steps or len(job.names.get("inputs", [1]))
    plain = [bench.plain()]
    expected = bench.results(job)
    plain.append(bench.plain())
    own = Agreement(expected)  # of eager with itself: what any difference under the column has to be seen beside
    own.take(bench.results(job))
    found |= own_agreement(own)
    found |= {"steps": job.steps, "plain": _samples(plain, job.steps), "at": "the first run"}
    save(found)
    try:
        variant = column.make(job, row.build, size, bench.shell)
    except NotPossible as why:
        save(found | {"outcome": "not possible", "why": str(why)})
        return
    memory = Memory()
    bench.plain()  # the allocator has again what it gave back for that
    began = time.perf_counter()
    variant.prepare()
    synchronize()
    prepared = time.perf_counter() - began
    agreement = Agreement(expected)
    warm: list[tuple[float, float]] = []
    fewest, most = WARM["grape" if column.is_grape else "other"]
    if size.quick:
        fewest = most = 2
    while len(warm) < fewest or (len(warm) < most and not _settled(warm)):
        warm.append(_under(bench, variant))
        agreement.take(bench.results(variant.job))
        found |= {"prepare_s": prepared, "warm": _samples(warm, job.steps), "at": f"run {len(warm) + 1}"}
        save(found)
        if time.monotonic() > until - seconds / 2:
            break
    beside: list[tuple[float, float]] = []
    timed: list[tuple[float, float]] = []
    rounds = (1, 1) if size.quick else ROUNDS
    while len(timed) < rounds[0] or (len(timed) < rounds[1] and time.monotonic() < until):
        beside.append(bench.plain())
        own.take(bench.results(job))
        timed.append(_under(bench, variant))
        agreement.take(bench.results(variant.job))
        found |= {"beside": _samples(beside, job.steps), "timed": _samples(timed, job.steps)}
        found |= own_agreement(own)
        found |= {"agreement": agreement.to_dict(), "outcome": "measured", "at": "timed runs"}
        save(found)
        if time.monotonic() > until + seconds / 4:
            break
    found |= {"memory": memory.grown(), "more": variant.after()}
    save(found)


def _under(bench: Bench, variant: Variant) -> tuple[float, float]:
    variant.switch(True)
    try:
        return bench.run(variant.names, variant.cells, variant.job, variant.head)
    finally:
        variant.switch(False)


def _settled(runs: Sequence[tuple[float, float]]) -> bool:
    (_, before), (_, last) = runs[-2:]
    return abs(last / before - 1) < SETTLED


def _samples(runs: Sequence[tuple[float, float]], steps: int) -> dict[str, Any]:
    """Milliseconds a step, without reports; seconds a run, with them."""
    return {
        "step_ms": [round(inner / steps * 1e3, 6) for inner, _ in runs],
        "run_s": [round(whole, 6) for _, whole in runs],
        "median_step_ms": statistics.median(inner / steps * 1e3 for inner, _ in runs),
        "median_run_s": statistics.median(whole for _, whole in runs),
    }


class Agreement:
    """Whether results have the bits of the plain run, and if not, how far they are from it."""

    def __init__(self, expected: Sequence[torch.Tensor]) -> None:
        self._expected = expected
        self._identical, self._runs = True, 0
        self._difference, self._relative = 0.0, 0.0

    def take(self, got: Sequence[torch.Tensor]) -> None:
        self._runs += 1
        if same(self._expected, got):
            return
        self._identical = False
        if [one.shape for one in self._expected] != [one.shape for one in got]:
            self._difference = self._relative = float("inf")
            return
        for want, have in zip(self._expected, got, strict=True):
            if want.numel() == 0:
                continue
            left, right = want.double(), have.to(want.device).double()
            off = float((left - right).abs().nan_to_num(float("inf")).max())
            if off != off or (torch.isnan(left) & torch.isnan(right)).any():
                off = float("inf")
            scale = float(left.abs().nan_to_num(0.0).max()) or 1.0
            self._difference, self._relative = max(self._difference, off), max(self._relative, off / scale)

    def to_dict(self) -> dict[str, Any]:
        """Differences are the largest of any element, and the same by the largest number of its tensor."""
        return {
            "identical": self._identical,
            "runs": self._runs,
            "largest_difference": self._difference,
            "relative": self._relative,
        }


def own_agreement(own: Agreement) -> dict[str, Any]:
    known = own.to_dict()
    return {"repeatable": known["identical"], "eager_agreement": known}


class Memory:
    """What the device holds more than when this was made, the allocator's cache apart; None without one, and where
    others use it (`SHARED` in the environment). Peaks are of what the allocator reserved, from the beginning of the
    process on: eager's until this was made, and of all."""

    def __init__(self) -> None:
        self._eager_peak = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else None
        self._free = self._now()

    @staticmethod
    def _now() -> int | None:
        gc.collect()
        if not torch.cuda.is_available():
            return None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    def grown(self) -> dict[str, Any]:
        now = self._now()
        if now is None or self._free is None:
            return {"held_bytes": None}
        peaks = {"peak_bytes": torch.cuda.max_memory_reserved(), "eager_peak_bytes": self._eager_peak}
        if os.environ.get(SHARED):
            return {"held_bytes": None, "shared": True, **peaks}
        return {"held_bytes": self._free - now, **peaks}


def _shell() -> Any:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    return InteractiveShell.instance(config=config)
