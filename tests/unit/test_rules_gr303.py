"""GR303: a loop waits for its loader. Five loops that starve, five that do not; the rule, what is measured, the fix."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from grape.advisor.rules.gr3xx import gr303
from grape.failures import forget_failures
from grape.fixing.verification import verify
from grape.model import Finding, LoaderWait, Position
from grape.profiling import HostCallTimer, LoaderWatch
from grape.rewrite import Declined, Rewritten
from grape.rewrite.registry import fix
from grape.tracing import PositionFinder
from tests.unit.trace_builder import at, cell

LOOP = "for x in loader:\n    total += model(x).sum()\n"
TRAINER = Position(file="/usr/lib/python3.11/site-packages/trainer/loop.py", line=9, function="fit")


def wait(**fields: Any) -> LoaderWait:
    known: dict[str, Any] = {
        "at": at(1),
        "inner": at(1),
        "batches": 20,
        "host_ms": 240.0,
        "wait_ms": 200.0,
        "workers": 0,
        "pinned": False,
        "collates": False,
        "tensors": False,
        "draws": False,
        "on_cpu": True,
        "cpus": 8,
        "forks": True,
    }
    return LoaderWait(**{**known, **fields})


def found(source: str = LOOP, **fields: Any) -> list[Finding]:
    return list(gr303.check(cell(source=source, loaders=(wait(**fields),))))


def test_a_loop_that_waits_for_its_loader() -> None:
    (finding,) = found()
    assert finding.message == (
        "the loop waits 10 ms for each of 20 batches, 20% of the cell: they are made item by item in this process "
        "(`num_workers=0`), while the GPU has nothing to do"
    )
    assert finding.advice == "let worker processes make them: `num_workers=4` and `pin_memory=True`"
    assert (finding.at, finding.predicted_ms_per_call, finding.severity) == (at(1), 10.0, "costly")
    assert dict(finding.evidence)["share"] == 0.2


@pytest.mark.parametrize(
    ("fields", "in_message", "advice"),
    [
        ({"collates": True}, "collated by a function of yours in Python in this process", "let worker processes make"),
        ({"tensors": True}, "made item by item", "take a batch of rows at once: `sampler=BatchSampler("),
        ({"workers": 2}, "2 worker processes cannot make them fast enough", "`num_workers=4` and `pin_memory=True`"),
        ({"workers": 1, "pinned": True}, "1 worker process cannot", "`num_workers=2`; or do the work on a batch"),
        ({"on_cpu": False}, "made item by item", "keep the items in one tensor on the device"),
        (
            {"draws": True},
            "made item by item",
            "let worker processes make them: `num_workers=4` and `pin_memory=True`;",
        ),
        ({"inner": TRAINER}, "(in fit, trainer/loop.py, line 9)", "look for the library's option that sets"),
    ],
)
def test_the_words_fit_the_loader(fields: dict[str, Any], in_message: str, advice: str) -> None:
    (finding,) = found(**fields)
    assert in_message in finding.message
    assert finding.advice is not None and finding.advice.startswith(advice)


@pytest.mark.parametrize(
    "fields",
    [
        {"wait_ms": 99.0},  # of 1000: the loop is busy, whatever the loader takes beside the device's work
        {"batches": 3},
        {"wait_ms": 0.0, "host_ms": 900.0},
        {"at": None},
    ],
)
def test_a_loop_that_does_not_starve(fields: dict[str, Any]) -> None:
    assert not found(**fields)


def test_a_tenth_of_the_cell_is_enough() -> None:
    assert found(wait_ms=100.0)
    assert not list(gr303.check(cell(source=LOOP, wall_ms=40.0, loaders=(wait(wait_ms=4.9),))))


def test_what_looking_on_took_is_not_of_the_cell() -> None:
    (finding,) = gr303.check(cell(source=LOOP, looked_ms=500.0, loaders=(wait(wait_ms=60.0),)))
    assert dict(finding.evidence)["share"] == pytest.approx(0.12)
    (finding,) = gr303.check(cell(source=LOOP, looked_ms=990.0, loaders=(wait(wait_ms=60.0),)))
    assert dict(finding.evidence)["share"] == 1.0


def test_a_line_that_only_loads_is_no_loop() -> None:
    assert not found(source="batches = list(loader)\n")
    assert found(source="for _ in range(9):\n    batch = next(batches)\n", at=at(2))
    helper = "def batch():\n    return next(batches)\ndef load():\n    return list(loader)\n"
    assert found(source=helper, at=at(2, function="batch"))
    assert not found(source=helper, at=at(4, function="load"))


def test_through_a_progress_bar_the_loop_is_the_persons() -> None:
    bar = Position(file="/usr/lib/python3.11/site-packages/tqdm/std.py", line=3, function="__iter__")
    (finding,) = found(inner=bar)
    assert "in_library" not in dict(finding.evidence)


# -- what is measured ----------------------------------------------------------------------------------------------


class Slow(Dataset[torch.Tensor]):
    """Items that take a while, and draw a random number where they are told to."""

    def __init__(self, *, seconds: float = 0.002, draws: bool = False) -> None:
        self.seconds, self.draws = seconds, draws

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        if index == 11 and self.seconds < 0:
            raise RuntimeError("the file is gone")
        return torch.rand(2) if self.draws else torch.full((2,), float(index))


class Broken(Slow):
    def __getitem__(self, index: int) -> torch.Tensor:
        raise ValueError("the file is gone")


@pytest.fixture
def watch() -> Iterator[LoaderWatch]:
    made = LoaderWatch(HostCallTimer, PositionFinder(), lambda: 0)
    made.join()
    yield made
    made.leave()


def test_each_batch_is_timed_and_nothing_is_changed(watch: LoaderWatch) -> None:
    batches = list(DataLoader(Slow(), batch_size=3))
    watch.leave()
    (seen,) = watch.waits()
    assert torch.equal(torch.stack(batches), torch.stack(list(DataLoader(Slow(seconds=0), batch_size=3))))
    assert (seen.batches, seen.workers, seen.collates, seen.tensors, seen.draws, seen.on_cpu) == (
        *(4, 0),
        *(False, False, False, True),
    )
    assert 4 * 3 * 2.0 <= seen.host_ms < 4 * 3 * 20.0
    assert seen.wait_ms == pytest.approx(seen.host_ms, rel=0.2)
    assert seen.at is not None and seen.at.file == __file__


def test_the_class_is_as_it_was_afterwards(watch: LoaderWatch) -> None:
    timed = _BaseDataLoaderIter.__next__
    watch.leave()
    assert _BaseDataLoaderIter.__next__ is not timed
    assert _BaseDataLoaderIter.__next__.__module__ == "torch.utils.data.dataloader"


def test_workers_that_start_are_no_wait_for_batches(watch: LoaderWatch) -> None:
    for _ in range(2):
        list(DataLoader(Slow(seconds=0), batch_size=3, num_workers=1))
    (seen,) = watch.waits()
    assert (seen.batches, seen.workers, seen.draws) == (2 * 3, 1, None)


def test_items_that_draw_are_told_apart(watch: LoaderWatch) -> None:
    list(DataLoader(Slow(seconds=0, draws=True), batch_size=3))
    list(DataLoader(Slow(seconds=0), batch_size=3, shuffle=True))
    for _ in range(4):
        list(DataLoader(Slow(seconds=0), batch_size=12, shuffle=True))
    list(DataLoader(Slow(seconds=0), batch_size=3, collate_fn=torch.stack))
    assert [(seen.draws, seen.collates) for seen in watch.waits()] == [
        (True, False),
        (False, False),
        (None, False),  # each time the first batch, for which the order is drawn
        (False, True),
    ]


def test_rows_of_tensors_are_told_apart(watch: LoaderWatch) -> None:
    data = TensorDataset(torch.arange(12.0))
    for options in ({"shuffle": True}, {}, {"sampler": [3, 1, 2]}, {"collate_fn": torch.stack}):
        made: DataLoader[Any] = DataLoader(data, batch_size=2, **options)
        try:
            for _ in made:
                pass
        except TypeError:  # rows are tuples
            pass
    list(DataLoader(data, batch_size=None))
    assert sorted(seen.tensors for seen in watch.waits()) == [False, False, True]


def test_what_an_item_raises_shows_no_frame_of_grapes(watch: LoaderWatch) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="the file is gone") as raised:
            for _ in DataLoader(Broken(), batch_size=3):
                pass
        frames = [frame.filename for frame in traceback.extract_tb(raised.value.__traceback__)]
        assert not any("grape/profiling" in name for name in frames), frames
    assert not watch.waits()


def test_an_iterator_of_somebodys_own_goes_on(watch: LoaderWatch) -> None:
    class Own(_BaseDataLoaderIter):
        def __init__(self) -> None:
            self._profile_name, self._sampler_iter, self._num_yielded, self._dataset_kind = "own", [], 0, 0

        def _next_data(self) -> Any:
            return 7

    assert next(Own()) == 7 and not watch.waits()
    forget_failures()


class Idle:
    """A timer of a device that ran dry for a part of each wait, or that fails."""

    def __init__(self, ms: float) -> None:
        self._ms = ms

    def start(self) -> None:
        self._began = True

    def stop(self) -> None:
        assert self._began

    def elapsed_ms(self) -> float:
        if self._ms < 0:
            raise RuntimeError("CUDA error")
        return self._ms


@pytest.mark.parametrize(("each_ms", "expected"), [(0.5, 2.0), (1e9, None), (-1.0, ())])
def test_a_loader_behind_the_work_of_the_device_costs_nothing(each_ms: float, expected: Any) -> None:
    """Only the time in which the device had nothing to do counts, and never more than the loader took."""
    made = LoaderWatch(lambda: Idle(each_ms), PositionFinder(), lambda: 0)
    made.join()
    list(DataLoader(Slow(), batch_size=3))
    made.leave()
    if expected == ():
        assert made.waits() == ()
        return
    (seen,) = made.waits()
    assert seen.wait_ms == pytest.approx(seen.host_ms if expected is None else expected)


def test_of_many_batches_some_are_timed_on_the_device() -> None:
    timers: list[Idle] = []
    made = LoaderWatch(lambda: timers.append(Idle(0.0)) or timers[-1], PositionFinder(), lambda: 0)  # type: ignore[func-returns-value]
    made.join()
    list(DataLoader(TensorDataset(torch.arange(1000)), batch_size=1))
    made.leave()
    (seen,) = made.waits()
    assert seen.batches == 1000 and 64 < len(timers) < 64 + 1000 / 16 + 2


def test_what_observing_takes_is_no_wait() -> None:
    taken = iter(range(0, 10**12, 10**9))  # each look a second later
    made = LoaderWatch(HostCallTimer, PositionFinder(), lambda: next(taken))
    made.join()
    list(DataLoader(Slow(seconds=0), batch_size=3))
    made.leave()
    assert [seen.host_ms for seen in made.waits()] == [0.0]


def test_another_thread_takes_its_batches_as_ever(watch: LoaderWatch) -> None:
    import threading

    taken: list[int] = []
    thread = threading.Thread(target=lambda: taken.append(len(list(DataLoader(Slow(seconds=0), batch_size=3)))))
    thread.start()
    thread.join()
    assert taken == [4] and not watch.waits()


# -- the rewrite ---------------------------------------------------------------------------------------------------

ROWS = (("tensor_dataset", True), ("num_workers", 0), ("draws", False), ("on_cpu", True), ("workers_here", 4))
ITEMS = (("tensor_dataset", False), *ROWS[1:])


def rewritten(source: str, line: int, evidence: tuple[tuple[str, Any], ...] = ROWS) -> str | Declined:
    finding = Finding(code="GR303", severity="costly", message="", at=at(line), evidence=evidence)
    made = fix(source, finding)
    return made.source if isinstance(made, Rewritten) else made


@pytest.mark.parametrize(
    ("made", "instead"),
    [
        (
            "DataLoader(data, batch_size=4)",
            "DataLoader(data, sampler=torch.utils.data.BatchSampler("
            "torch.utils.data.SequentialSampler(data), 4, False), batch_size=None)",
        ),
        (
            "DataLoader(data, 3, True, drop_last=True)",
            "DataLoader(data, sampler=torch.utils.data.BatchSampler("
            "torch.utils.data.RandomSampler(data), 3, True), batch_size=None)",
        ),
        (
            "DataLoader(data, batch_size=n, shuffle=True, generator=g, pin_memory=False)",
            "DataLoader(data, sampler=torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data, generator=g)"
            ", n, False), batch_size=None, pin_memory=False, generator=g)",
        ),
    ],
)
def test_rows_are_taken_a_batch_at_a_time_and_compared(made: str, instead: str) -> None:
    source = (
        "import torch\nfrom torch.utils.data import DataLoader\n"
        f"loader = {made}\nseen = []\nfor epoch in range(2):\n    for i, (x, y) in enumerate(loader):\n"
        "        seen += [x.clone(), y * len(loader)]\nafter = torch.rand(1)\n"
    )
    new = rewritten(source, 6)
    assert new == source.replace(made, instead)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(14, 3), torch.arange(14))
    space: dict[str, Any] = {"__name__": "__main__", "torch": torch, "data": data, "n": 5, "g": 1}
    if "generator" in made:
        space["g"] = torch.Generator()
        before, after = run(source, space), run(str(new), space)
    else:
        run(source, space)
        assert verify(source, str(new), space).result == "identical"
        before, after = run(source, space), run(str(new), space)
    assert len(before["seen"]) == len(after["seen"]) > 4
    assert all(map(torch.equal, before["seen"], after["seen"]))
    assert torch.equal(before["after"], after["after"]), "random numbers are left as they would be"


def run(source: str, space: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(5)
    if isinstance(space["g"], torch.Generator):
        space["g"].manual_seed(7)
    exec(compile(source, "cell", "exec"), space)
    return dict(space)


def test_workers_make_other_items() -> None:
    source = "loader = DataLoader(frames, batch_size=4)\nfor x in loader:\n    step(x)\n"
    new = rewritten(source, 2, ITEMS)
    assert new == source.replace("batch_size=4", "batch_size=4, num_workers=4")
    checked = verify(source, str(new), {"frames": [1.0], "DataLoader": DataLoader, "step": abs})
    assert (checked.result, checked.why) == ("not verified", "it starts worker processes")


@pytest.mark.parametrize(
    ("source", "line", "evidence", "why"),
    [
        ("for x in batches():\n    step(x)\n", 1, ROWS, "the loop does not go over a DataLoader by name"),
        ("loader = make()\nfor x in loader:\n    step(x)\n", 2, ROWS, "`loader` is no DataLoader that is made in this"),
        (
            "loader = DataLoader(data, 4)\nfor x in loader:\n    step(x)\nn = loader.batch_size\n",
            *(2, ROWS, "`loader` is used for more than its batches"),
        ),
        ("for x in DataLoader(TensorDataset(a), 4):\n    step(x)\n", 1, ROWS, "the dataset has no name"),
        ("for x in DataLoader(data, 4, shuffle=s):\n    step(x)\n", 1, ROWS, "whether the loader shuffles is computed"),
        ("for x in DataLoader(data, 4, collate_fn=f):\n    step(x)\n", 1, ROWS, "the loader has `collate_fn`"),
        ("for x in DataLoader(data):\n    step(x)\n", 1, ROWS, "the loader makes no batches"),
        ("for x in DataLoader(data, size()):\n    step(x)\n", 1, ROWS, "the loader's options are computed"),
        ("for x in DataLoader(data, **o):\n    step(x)\n", 1, ROWS, "the DataLoader's options are computed"),
        ("step(next(batches))\n", 1, ROWS, "no `for` loop begins on the line"),
        (
            "for x in DataLoader(data, 4):\n    step(x)\n",
            1,
            (("draws", True), ("workers_here", 4)),
            "making items draws",
        ),
        (
            "for x in DataLoader(data, 4):\n    step(x)\n",
            1,
            (("draws", None), ("workers_here", 4)),
            "making items draws",
        ),
        ("for x in DataLoader(data, 4):\n    step(x)\n", 1, (("workers_here", 0),), "there is no core for a worker"),
        (
            "for x in DataLoader(data, 4):\n    step(x)\n",
            *(1, (("draws", False), ("workers_here", 4), ("on_cpu", False)), "the items lie on a device"),
        ),
        (
            "for x in DataLoader(data, num_workers=2):\n    step(x)\n",
            *(1, (("num_workers", 2),), "the loader has worker processes already"),
        ),
    ],
)
def test_what_is_refused(source: str, line: int, evidence: tuple[tuple[str, Any], ...], why: str) -> None:
    declined = rewritten(source, line, evidence)
    assert isinstance(declined, Declined) and declined.why.startswith(why), declined


# -- whole cells ---------------------------------------------------------------------------------------------------


CELLS = {
    "loader_frames": '''"""Frames are read one by one while nothing is computed."""
# %% setup
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Frames(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((8,), float(index))

w, total = torch.eye(8), torch.zeros(())
loader = DataLoader(Frames(), batch_size=4)
# %% cell
for frames in loader:  # GR303
    total += (frames @ w).sin().sum()
''',
    "loader_collate": '''"""Texts of different lengths are padded in Python, for each batch anew."""
# %% setup
import torch
from torch.utils.data import DataLoader

texts = [torch.arange(3 + i % 5) for i in range(64)]

def padded(batch):  # GR201
    sum(range(300_000))  # a tokenizer
    return torch.stack([torch.nn.functional.pad(text, (0, 8 - len(text))) for text in batch])

table, total = torch.ones(16, 4), torch.zeros(())
# %% cell
for tokens in DataLoader(texts, batch_size=4, collate_fn=padded):  # GR303
    total += table[tokens].sum()
''',
    "loader_rows": '''"""Rows of tensors, indexed and stacked one by one."""
# %% setup
import torch
from torch.utils.data import DataLoader, TensorDataset

w, total = torch.eye(8), torch.zeros(())
data = TensorDataset(torch.randn(4096, 8), torch.arange(4096))
# %% cell
loader = DataLoader(data, batch_size=256, shuffle=True)
for step, (x, y) in enumerate(loader):  # GR303
    total += (x @ w).sum()
''',
    "loader_next": '''"""A training loop that asks for its batches by hand, in a function."""
# %% setup
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Frames(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((8,), float(index))

w = torch.eye(8)

def train(batches, steps):  # GR405
    total = torch.zeros(())
    for _ in range(steps):
        x = next(batches)  # GR303
        total += (x @ w).sum()
    return total
# %% cell
total = train(iter(DataLoader(Frames(), batch_size=4)), 10)
''',
    "loader_workers": '''"""One worker is not enough for items that take so long."""
# %% setup
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Frames(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.full((8,), float(index))

w, total = torch.eye(8), torch.zeros(())
# %% cell
for frames in DataLoader(Frames(), batch_size=4, num_workers=1):  # GR303
    total += (frames @ w).sin().sum()
''',
    "loader_busy": '''"""The loader is quick beside the work on its batches."""
# near-miss: GR303
# %% setup
import time
import torch
from torch.utils.data import DataLoader, TensorDataset

w, total = torch.eye(8), torch.zeros(())
loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4)
# %% cell
for (x,) in loader:
    total += (x @ w).sin().sum()
    time.sleep(0.02)  # what a device would take
''',
    "loader_ahead": '''"""Workers are ahead of the loop."""
# near-miss: GR303
# %% setup
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Frames(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((8,), float(index))

w, total = torch.eye(8), torch.zeros(())
# %% cell
for frames in DataLoader(Frames(), batch_size=4, num_workers=1):
    total += (frames @ w).sin().sum()
    time.sleep(0.1)  # what a device would take
''',
    "loader_kept": '''"""All batches are made once, and the loop goes over the list."""
# near-miss: GR303
# %% setup
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Frames(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((8,), float(index))

w, total = torch.eye(8), torch.zeros(())
# %% cell
batches = list(DataLoader(Frames(), batch_size=4))
for frames in batches:
    total += (frames @ w).sin().sum()
''',
    "loader_first": '''"""One batch is looked at; the loader makes no more."""
# near-miss: GR303
# %% setup
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Frames(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((8,), float(index))

w = torch.eye(8)
# %% cell
for frames in DataLoader(Frames(), batch_size=4):
    shown = frames @ w
    break
''',
    "loader_batched": '''"""Rows are taken a batch at a time already."""
# near-miss: GR303
# %% setup
import time
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

w, total = torch.eye(8), torch.zeros(())
data = TensorDataset(torch.randn(2048, 8))
loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 256, False), batch_size=None)
# %% cell
for (x,) in loader:
    total += (x @ w).sum()
    time.sleep(0.01)  # what a device would take
''',
}
