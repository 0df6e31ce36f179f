"""`grape.prefetch`: the batches, errors, `break` and random numbers of the loader, whatever it is."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

import grape
from grape.errors import UsageError
from grape.runtime.prefetch import _Ahead, _in_time, _is_prepared_ahead, _makes_fresh_batches, _mapped
from tests.unit.rewrite_cases import outcome

Pair = namedtuple("Pair", "x y")
DATA = TensorDataset(torch.arange(24.0).view(12, 2), torch.arange(12))


class Noisy(Dataset[torch.Tensor]):
    """Draws from the random stream that the loop's body draws from as well."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 6:
            raise ValueError("row 6")
        return torch.rand(2) + index


@dataclass
class Begun:
    batch: Any
    events: list[str]

    def hand_over(self) -> Any:
        self.events.append("hand over")
        return self.batch


class Copies:
    """What `_Copies` does, on the CPU: notes the order of events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def start(self, batch: Any) -> Any:
        self.events.append("start")
        return Begun(batch, self.events)


def test_it_is_public_and_loaded_when_used() -> None:
    code = (
        "import sys, grape; assert 'torch' not in sys.modules; print(grape.prefetch([], 'cpu'), 'torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "Prefetch object" in said and said.endswith(" True\n")
    assert "prefetch" in grape.__all__


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_order_and_random_streams_are_the_loaders(workers: int) -> None:
    results = []
    for wrap in (lambda loader: loader, lambda loader: grape.prefetch(loader, "cpu")):
        torch.manual_seed(3)
        loader = DataLoader(DATA, batch_size=5, shuffle=True, num_workers=workers)
        seen = [(x, y, torch.rand(2)) for x, y in wrap(loader)]
        results.append((outcome(seen), outcome(torch.get_rng_state()), len(wrap(loader))))
    assert results[0] == results[1]


@pytest.mark.parametrize("make", [lambda it: _in_time(it, Copies()), lambda it: grape.prefetch(it, "cpu")])  # type: ignore[arg-type]
def test_nothing_is_drawn_before_the_loop_asks(make: Any) -> None:
    results = []
    for wrap in (iter, make):
        torch.manual_seed(0)
        drawn: list[Any] = []
        try:
            for number, x in enumerate(wrap(iter(DataLoader(Noisy(), batch_size=2)))):
                drawn.append((x, torch.rand(1)))
                if number == 2:
                    break
        finally:
            results.append((outcome(drawn), outcome(torch.get_rng_state())))
    assert results[0] == results[1]


@pytest.mark.parametrize("kind", [_in_time, _Ahead])
def test_an_error_of_the_loader_comes_in_its_turn(kind: Any) -> None:
    def batches() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("third")

    got = []
    with pytest.raises(ValueError, match="third"):
        for item in kind(batches(), Copies()):
            got.append(item)
    assert got == [1, 2]


def test_one_batch_ahead_and_no_further() -> None:
    taken = []

    def batches() -> Iterator[int]:
        for number in range(5):
            taken.append(number)
            yield number

    copies = Copies()
    ahead = _Ahead(batches(), copies)  # type: ignore[arg-type]
    assert next(ahead) == 0 and taken == [0, 1]
    assert next(ahead) == 1 and taken == [0, 1, 2]
    assert copies.events == ["start", "start", "hand over", "start", "hand over"]
    assert list(ahead) == [2, 3, 4] and next(ahead, None) is None


def test_an_interrupt_while_a_batch_is_drawn_ahead_is_not_kept_for_later() -> None:
    def batches() -> Iterator[int]:
        yield 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(_Ahead(batches(), Copies()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("loader", "ahead"),
    [
        (DataLoader(DATA, num_workers=2), True),
        (DataLoader(DATA, num_workers=2, shuffle=True), True),
        (DataLoader(DATA, num_workers=0, shuffle=True), False),
        (DataLoader(DATA, num_workers=2, shuffle=True, generator=torch.Generator()), False),
        (DataLoader(DATA, num_workers=2, sampler=RandomSampler(DATA, replacement=True)), False),
        (DataLoader(DATA, num_workers=2, batch_sampler=[[0, 1], [2]]), False),
        ([torch.ones(2)], False),
    ],
)
def test_who_is_read_ahead(loader: Any, ahead: bool) -> None:
    assert _is_prepared_ahead(loader) is ahead


def test_an_iterable_dataset_is_not_read_ahead() -> None:
    class Rows(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    loader = DataLoader(Rows(), num_workers=2)
    assert not _is_prepared_ahead(loader)
    with pytest.raises(TypeError):
        len(grape.prefetch(loader, "cpu"))
    with pytest.raises(TypeError, match="object of type 'generator' has no len"):
        len(grape.prefetch((x for x in [1]), "cpu"))


@pytest.mark.parametrize(
    ("loader", "fresh"),
    [
        (DataLoader(DATA, pin_memory=True), True),
        (DataLoader(DATA), False),
        (DataLoader(DATA, pin_memory=True, collate_fn=lambda rows: rows), False),
        (DataLoader(DATA, pin_memory=True, batch_size=None), False),
        ([torch.ones(2)], False),
    ],
)
def test_whose_memory_nobody_writes_again(loader: Any, fresh: bool) -> None:
    assert _makes_fresh_batches(loader) is fresh


def test_containers_keep_their_kinds_and_what_is_no_tensor_stays() -> None:
    x = torch.ones(2)
    batch = {"x": x, "pair": Pair(x, 3), "list": [x, "name"], "none": None, 1: (x,)}
    made = _mapped(batch, lambda tensor: tensor + 1)
    assert type(made["pair"]) is Pair and made["pair"].y == 3 and list(made) == list(batch)
    assert outcome(made["list"]) == outcome([x + 1, "name"]) and type(made[1]) is tuple
    assert batch["x"] is x
    assert _mapped(batch, lambda tensor: tensor) is batch, "nothing moved: the loader's own object"


def test_each_iteration_begins_anew() -> None:
    batches = grape.prefetch([torch.ones(1), torch.zeros(1)], "cpu")
    assert [[float(x) for x in batches] for _ in range(2)] == [[1.0, 0.0], [1.0, 0.0]]
    assert [x.device.type for x in grape.prefetch([torch.ones(1)], "meta")] == ["meta"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_device_that_is_not_there_fails_as_a_plain_copy_does(device: str) -> None:
    with pytest.raises((AssertionError, RuntimeError)) as plain:
        torch.ones(1).to(device)
    with pytest.raises(plain.type) as ours:
        list(grape.prefetch([torch.ones(1)], device))
    assert type(ours.value) is plain.type and str(ours.value) == str(plain.value)
    assert list(grape.prefetch(["a batch without tensors"], device)) == ["a batch without tensors"]


def test_misuse() -> None:
    with pytest.raises(UsageError, match=r"grape.prefetch: 'gpu' is no device"):
        grape.prefetch([], "gpu")
    with pytest.raises(UsageError, match=r"grape.prefetch: 'tensor"):
        grape.prefetch([], torch.ones(1))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs something to iterate over, not a float"):
        grape.prefetch(3.0, "cpu")  # type: ignore[arg-type]
