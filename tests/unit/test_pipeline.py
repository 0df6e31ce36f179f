"""`grape.pipeline`: the results, errors, random numbers and state of the loop that takes one sample after the other."""

from __future__ import annotations

import copy
import random
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good
from torch import nn

import grape
from grape.errors import UsageError

Pair = namedtuple("Pair", "x y")


def wide(seed: int = 0) -> list[nn.Module]:
    """Three stages, each of which issues enough for a graph."""
    torch.manual_seed(seed)
    return [nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)]) for _ in range(3)]


def frames(count: int, *shape: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(*(shape or (4, 8)), generator=generator) for _ in range(count)]


def one_by_one(stages: Sequence[Callable[[Any], Any]], samples: Any) -> list[Any]:
    results = []
    for sample in samples:
        for stage in stages:
            sample = stage(sample)
        results.append(sample)
    return results


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.detach().reshape(-1).view(torch.uint8), other.detach().reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("depth", [1, 2, 3, 7])
def test_results_in_order_with_the_bits_of_the_loop(depth: int) -> None:
    samples = frames(60)
    expected = one_by_one(wide(), samples)
    with grape.pipeline(wide(), depth=depth) as p:
        found = list(p(samples))
        assert "replayed by 1 graph" in repr(p)
        assert all(stage.replays for stage in p._stages)
    assert len(found) == len(expected) and all(map(same, found, expected))
    assert (p.depth, p.lag) == (depth, depth - 1)
    assert not any(result.requires_grad for result in found)


def test_no_samples_and_fewer_than_the_depth() -> None:
    p = grape.pipeline(wide(), depth=5)
    assert list(p([])) == []
    assert all(map(same, p(frames(2)), one_by_one(wide(), frames(2))))


def test_samples_are_taken_no_more_than_the_lag_ahead() -> None:
    taken = 0

    def source() -> Iterator[torch.Tensor]:
        nonlocal taken
        for frame in frames(20):
            taken += 1
            yield frame

    results = grape.pipeline(wide(), depth=3)(source())
    assert taken == 0
    for number, _ in enumerate(results):
        assert taken == min(20, number + 3)


def test_shapes_that_vary() -> None:
    samples = [frame[: 1 + number % 4] for number, frame in enumerate(frames(80))]
    found = list(grape.pipeline(wide())(samples))
    assert all(map(same, found, one_by_one(wide(), samples)))


def test_state_and_random_numbers_of_the_loop() -> None:
    def stages() -> list[nn.Module]:
        torch.manual_seed(3)
        return [
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Tanh()),
            nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Tanh()),
            nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh()),
        ]

    plain, piped = stages(), stages()
    torch.manual_seed(5)
    expected = one_by_one(plain, frames(60))
    after = torch.rand(3)
    torch.manual_seed(5)
    assert all(map(same, grape.pipeline(piped)(frames(60)), expected))
    assert torch.equal(torch.rand(3), after)
    for one, other in zip(plain, piped, strict=True):
        assert all(map(same, other.state_dict().values(), one.state_dict().values()))


class Learner(nn.Module):
    """Learns to foretell its input, one step for each sample."""

    def __init__(self, optimizer: Callable[..., torch.optim.Optimizer]) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
        self.optimizer = optimizer(self.net.parameters(), lr=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        made = self.net(x)
        (made - x).square().mean().backward()
        self.optimizer.step()
        return made


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_online_learning(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    torch.manual_seed(1)
    plain = [Learner(optimizer) for _ in range(3)]
    piped = copy.deepcopy(plain)
    for learner in piped:
        learner.optimizer = optimizer(learner.net.parameters(), lr=0.1)
    samples = frames(60)
    expected = []
    for sample in samples:
        for stage in plain:
            sample = stage(sample).detach()
        expected.append(sample)
    assert all(map(same, grape.pipeline(piped)(samples), expected))
    for one, other in zip(plain, piped, strict=True):
        assert all(map(same, other.state_dict().values(), one.state_dict().values()))


def test_containers_go_from_stage_to_stage() -> None:
    def first(sample: dict[str, Any]) -> Any:
        return Pair(sample["x"] * 2, {"y": [sample["x"], sample["name"], None]})

    def second(pair: Any) -> Any:
        assert type(pair) is Pair
        return pair.x + pair.y["y"][0], pair.y["y"][1:]

    samples = [{"x": frame, "name": f"frame {number}"} for number, frame in enumerate(frames(30))]
    for number, (value, rest) in enumerate(grape.pipeline([first, second])(samples)):
        assert same(value, samples[number]["x"] * 3) and rest == [f"frame {number}", None]


def test_views_that_share_memory() -> None:
    def first(x: torch.Tensor) -> Any:
        y = x * 2
        wide = torch.zeros(300, dtype=torch.float64)
        return {"all": y, "half": y[:, 1:5], "turned": y.t(), "again": y, "late": wide[201:203], "none": y[:0]}

    def second(given: Any) -> torch.Tensor:
        assert given["all"] is given["again"] and given["turned"].stride() == (1, 8)
        assert given["late"].data_ptr() % 64 == 201 * 8 % 64  # what alignment chooses kernels
        assert given["none"].shape == (0, 8)
        given["half"].add_(1)
        given["late"].add_(1)
        return given["all"] @ given["turned"] + given["late"].sum()

    assert all(map(same, grape.pipeline([first, second])(frames(9)), one_by_one([first, second], frames(9))))


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6).to_sparse(),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(3, 1).expand(3, 4),
        torch.tensor(3),
        nn.Parameter(torch.ones(2)),
    ],
    ids=["sparse", "conjugated", "channels last", "expanded", "scalar", "parameter"],
)
def test_tensors_of_all_kinds(value: torch.Tensor) -> None:
    (found,) = grape.pipeline([lambda x: x])([value])
    assert found is not value and not found.requires_grad and found.layout == value.layout
    assert torch.equal(found.to_dense(), value.to_dense()) if value.is_sparse else torch.equal(found, value)
    assert value.is_sparse or found.stride() == value.stride()


def test_results_are_the_callers_and_samples_too() -> None:
    """The caller overwrites both, and a stage returns its own state."""
    state = torch.zeros(4, 8)

    def add(x: torch.Tensor) -> torch.Tensor:
        return state.add_(x)

    def source() -> Iterator[torch.Tensor]:
        buffer = torch.empty(4, 8)
        for frame in frames(30):
            yield buffer.copy_(frame)

    expected = list(torch.stack(frames(30)).cumsum(0))
    kept = []
    for result in grape.pipeline([lambda x: x * 1, add], depth=4)(source()):
        kept.append(result.clone())
        result.zero_()
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(kept, expected, strict=True))


def test_a_stage_may_write_its_sample() -> None:
    samples = frames(30)
    before = [sample.clone() for sample in samples]
    found = list(grape.pipeline([lambda x: x.add_(1), lambda x: x.mul_(2)])(samples))
    assert all(same(one, (other + 1) * 2) for one, other in zip(found, before, strict=True))
    assert all(map(same, samples, before))


# -- errors ------------------------------------------------------------------------------------------------------------


def failing_at(number: int) -> tuple[list[Callable[[Any], Any]], list[int]]:
    seen: list[int] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(int(x[0]))
        return x + 0

    def fail(x: torch.Tensor) -> torch.Tensor:
        if int(x[0]) == number:
            raise ValueError(f"sample {number}")
        return x * 10

    return [look, fail], seen


@pytest.mark.parametrize("depth", [1, 2, 6])
def test_an_error_comes_behind_the_results_before_it(depth: int) -> None:
    stages, seen = failing_at(7)
    p = grape.pipeline(stages, depth=depth)
    source = iter([torch.tensor([n]) for n in range(20)])
    results = []
    with pytest.raises(ValueError, match="sample 7"):
        for result in p(source):
            results.append(int(result))
    assert results == [n * 10 for n in range(7)]
    assert seen == list(range(8))  # nothing ran behind it
    assert [int(result) for result in p(source)] == [n * 10 for n in range(8, 20)]  # nothing was lost


def test_an_error_of_the_samples_comes_behind_the_results_before_it() -> None:
    def source() -> Iterator[torch.Tensor]:
        yield from frames(5)
        raise OSError("the camera")

    results = []
    with pytest.raises(OSError, match="the camera"):
        for result in grape.pipeline(wide(), depth=4)(source()):
            results.append(result)
    assert len(results) == 5


def test_an_error_of_a_sample_that_is_pushed() -> None:
    stages, _ = failing_at(2)
    p = grape.pipeline(stages, depth=3)
    assert p.push(torch.tensor([0])) == [] and p.push(torch.tensor([1])) == []
    with pytest.raises(ValueError, match="sample 2"):
        p.push(torch.tensor([2]))
    assert [int(result) for result in p.push(torch.tensor([3]))] == [0]
    assert [int(result) for result in p.drain()] == [10, 30]


def test_a_loop_that_is_left_early() -> None:
    p = grape.pipeline(wide(), depth=3)
    expected = one_by_one(wide(), frames(10))
    for number, result in enumerate(p(frames(10))):
        assert same(result, expected[number])
        if number == 4:
            break
    assert all(map(same, p.drain(), expected[5:7]))
    assert all(map(same, p(frames(10)), expected))


def test_a_loop_beside_another_one() -> None:
    p = grape.pipeline(wide(), depth=2)
    first = p(frames(10))
    next(first)
    second = p(frames(10))
    next(second)
    with pytest.raises(UsageError, match="other samples meanwhile"):
        next(first)
    assert len(list(second)) == 9


def test_close_leaves_results_to_drain() -> None:
    p = grape.pipeline(wide(), depth=4)
    for frame in frames(3):
        assert p.push(frame) == []
    p.close()
    p.close()
    assert "closed" in repr(p)
    assert all(map(same, p.drain(), one_by_one(wide(), frames(3))))
    for use in (lambda: p.push(frames(1)[0]), lambda: p(frames(1))):
        with pytest.raises(UsageError, match="this pipeline is closed"):
            use()


def test_a_module_is_let_go_of_with_its_pipeline() -> None:
    import gc
    import weakref

    stages = wide()
    known = weakref.ref(stages[0])
    p = grape.pipeline(stages)
    list(p(frames(40)))
    p.close()
    del p, stages
    gc.collect()
    assert known() is None


# -- what it takes -----------------------------------------------------------------------------------------------------


class Own(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Odd(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (Own(), {}, "cannot cut a Own into stages"),
        (Odd(nn.Linear(2, 2)), {}, "does more than call its layers"),
        (torch.tanh, {}, "takes a list of stages"),
        ([], {}, "at least one stage"),
        (nn.Sequential(), {}, "at least one stage"),
        ([torch.tanh, 3], {}, "stage 1 of the pipeline is a int"),
        ([torch.tanh], {"depth": 0}, "at least 1, not 0"),
        ([torch.tanh], {"depth": True}, "at least 1, not True"),
        ([torch.tanh], {"devices": "cpu"}, "devices are a list"),
        ([torch.tanh], {"devices": ["cpu", "cpu"]}, "1 stages need as many devices, not 2"),
        ([torch.tanh], {"devices": ["nowhere"]}, "'nowhere' is no device"),
        ([torch.tanh], {"devices": ["meta"]}, "is not supported"),
        (nn.Sequential(nn.Linear(2, 2)), {"devices": ["cpu", "cpu"]}, "cannot be cut into 2 stages"),
    ],
)
def test_misuse(given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        grape.pipeline(given, **options)


def test_samples_that_are_none() -> None:
    with pytest.raises(UsageError, match="samples to iterate over, not a int"):
        grape.pipeline([torch.tanh])(3)  # type: ignore[arg-type]


def test_an_object_that_holds_tensors() -> None:
    class Thing:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

    with pytest.raises(UsageError, match="cannot hand on a 'Thing', which holds tensors"):
        list(grape.pipeline([Thing])(frames(3)))


@pytest.mark.parametrize(
    ("options", "parts"), [({}, [2, 2, 1, 1]), ({"depth": 2}, [3, 3]), ({"devices": ["cpu"] * 3}, [2, 2, 2])]
)
def test_a_sequential_is_cut(options: dict[str, Any], parts: list[int]) -> None:
    model = nn.Sequential(
        nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 8)
    ).eval()
    p = grape.pipeline(model, **options)
    stages = [stage.function for stage in p._stages]
    assert [len(one) if isinstance(one, nn.Sequential) else 1 for one in stages] == parts
    assert not any(one.training for one in stages if isinstance(one, nn.Module))
    assert all(map(same, p(frames(20)), [model(frame) for frame in frames(20)]))


def test_what_it_says_of_itself() -> None:
    random.seed(0)
    p = grape.pipeline([nn.Linear(8, 8), torch.tanh], depth=2)
    assert p.serial == "there is no GPU among the devices"
    assert repr(p).splitlines() == [
        "<grape.pipeline of 2 stages, depth 2: one sample at a time (there is no GPU among the devices)",
        "  0 Linear on cpu: not called yet",
        "  1 tanh on cpu: not called yet>",
    ]
