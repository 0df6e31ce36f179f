"""Operators whose sizes are new ones each time, as those of a cache that grows, amid others that repeat."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from grape.streams import Evidence, Settings, Stream, open_stream
from tests.property.stream_programs import flat, needs_compiler
from tests.unit.test_streams_graphs import agrees

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]

GROWS = "sizes that grow"
USUAL = {"settled": 1000, "patience": 4000}
LAYERS = 6


def block(x: Tensor, weight: Tensor) -> Tensor:
    for _ in range(4):
        x = torch.tanh(x @ weight) * 1.25 + x
    return x / x.norm()


def attend(query: Tensor, cache: Tensor) -> Tensor:
    return torch.softmax(query @ cache.T, -1) @ cache


def decode(steps: int, *, reads: bool, other: Tensor | None = None) -> Callable[[], list[Tensor]]:
    def loop() -> list[Tensor]:
        torch.manual_seed(0)
        weights = [torch.randn(8, 8) / 3 for _ in range(LAYERS)]
        caches = [torch.randn(2, 8) for _ in range(LAYERS)]
        x, kept, total = torch.randn(1, 8), [], 0.0
        with torch.no_grad():
            for _ in range(steps):
                for layer in range(LAYERS):
                    x = block(x, weights[layer])
                    caches[layer] = torch.cat([caches[layer], x])
                    x = x + attend(x, caches[layer])
                    if other is not None:
                        x = x + attend(x, other)
                kept.append(x)
                if reads:
                    total += x.sum().item()
        return [*kept, *caches, torch.tensor(total)]

    return loop


@pytest.mark.parametrize("reads", [True, False])
def test_what_lies_between_operators_that_grow_is_deferred(reads: bool) -> None:
    evidence = agrees(decode(150, reads=reads), **USUAL)
    assert evidence.matched > 0.5 * evidence.seen
    assert evidence.written[GROWS] > 100 * LAYERS
    assert evidence.fragments <= 8, evidence
    assert evidence.recorded < 0.1 * evidence.seen, evidence


def test_sizes_of_such_a_kind_that_stay_are_deferred() -> None:
    """The attention over what does not grow is of the same operators, with as many dimensions."""
    without = agrees(decode(150, reads=True), **USUAL)
    beside = agrees(decode(150, reads=True, other=torch.randn(5, 8)), **USUAL)
    assert beside.written[GROWS] < 1.1 * without.written[GROWS]
    assert beside.matched - without.matched > 80 * 4 * LAYERS


def test_where_all_sizes_are_new_whole_iterations_are_looked_for() -> None:
    def loop() -> list[Tensor]:
        sums = []
        for _ in range(4):
            for length in range(3, 40):
                x = torch.linspace(-1, 1, length)
                for _ in range(20):
                    x = torch.tanh(x * 1.5) - 0.25
                sums.append(x.sum())
        return sums

    assert GROWS not in agrees(loop, **USUAL, hot=2).written


def evidence_of(*loops: Callable[[], list[Tensor]]) -> list[Evidence]:
    """Of one loop after the other, under one stream."""
    plain = [flat(loop()) for loop in loops]
    stream = open_stream(Settings(device="pretended", price=0, doubt=0))
    assert isinstance(stream, Stream), stream
    found = []
    with stream:
        for loop, expected in zip(loops, plain, strict=True):
            before = stream.evidence()
            assert flat(loop()) == expected
            found.append(stream.evidence().since(before))
    return found


def test_sizes_that_grow_no_more_are_deferred_again() -> None:
    cache = torch.randn(64, 8)

    def fixed() -> list[Tensor]:
        x, sums = torch.ones(1, 8), []
        for _ in range(600):
            for _ in range(10):
                x = torch.tanh(torch.cat([attend(x, cache), x]).sum(0, keepdim=True))
            sums.append(x)
        return sums

    grown, *_, later = evidence_of(decode(150, reads=True), fixed, fixed)
    assert grown.written[GROWS] > 100 * LAYERS
    assert later.matched > 0.9 * later.seen, later


def test_lengths_that_come_again_are_those_of_a_kind_that_grows() -> None:
    first, again = evidence_of(decode(150, reads=True), decode(150, reads=True))
    assert again.matched > first.matched
    assert again.recorded < 0.1 * again.seen


def test_a_library_decodes_with_its_growing_cache() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"n_layer": 6, "n_head": 2, "n_embd": 16, "vocab_size": 60, "bos_token_id": 0, "eos_token_id": None}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    model.generation_config.pad_token_id = 0
    ids = torch.randint(1, 60, (2, 4))

    def generate() -> list[Tensor]:
        return [model.generate(ids, max_new_tokens=80, min_new_tokens=80, do_sample=False)]

    generate()
    evidence = agrees(generate, **USUAL)
    assert evidence.written[GROWS] > 500
    assert evidence.matched > 0.35 * evidence.seen


def test_a_module_that_a_person_calls_with_ever_longer_inputs() -> None:
    net = nn.Sequential(*[nn.Linear(8, 8) for _ in range(12)]).eval()

    def loop() -> list[Tensor]:
        torch.manual_seed(0)
        x, history, made = torch.randn(1, 8), torch.zeros(0, 8), []
        with torch.no_grad():
            for _ in range(300):
                for _ in range(4):
                    x = torch.tanh(net(x))
                history = torch.cat([history, x])
                x = x + history.mean(0)
                made.append(x)
        return [*made, history]

    evidence = agrees(loop, **USUAL)
    assert evidence.matched > 0.6 * evidence.seen
    assert evidence.written[GROWS] > 200


@pytest.mark.parametrize("live", [True, False])
def test_strides_of_parts_of_what_grows(live: bool) -> None:
    """The last row of a cache in columns has the same sizes each time, and other strides."""

    def loop() -> list[Tensor]:
        torch.manual_seed(0)
        x, cache, made = torch.randn(8, 1), torch.randn(8, 2), []
        for _ in range(200):
            for _ in range(30):
                x = torch.tanh(x * 1.5) - 0.25
            cache = torch.cat([cache, x], 1)
            x = cache[:, -1:].exp() / 4
            made.append(x.sum().item())
        return [cache, torch.tensor(made)]

    evidence = agrees(loop, **USUAL, **({} if live else {"price": 1e6}))
    assert evidence.written["strides that change"] > 50
    assert evidence.diverged < 20, evidence
    assert evidence.matched > 0.7 * evidence.seen or not live


def trained(iterations: int, *, width: int = 16, batch: int = 4, layers: int = 3) -> Callable[[], list[Tensor]]:
    """Layers of the same width, or ever wider ones."""

    def loop() -> list[Tensor]:
        torch.manual_seed(0)
        widths = [8, *([width] * layers if layers < 8 else range(width, width + layers)), 3]
        net = nn.Sequential(*[one for a, b in pairwise(widths) for one in (nn.Linear(a, b), nn.Tanh())])
        optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
        x, losses = torch.randn(batch, 8), []
        for _ in range(iterations):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(torch.tensor(loss.item()))
        return [*losses, *net.parameters()]

    return loop


@pytest.mark.parametrize("iterations", [20, 100])
def test_the_loops_of_a_sweep_have_other_sizes_each_and_nothing_grows(iterations: int) -> None:
    first, *others = evidence_of(*[trained(iterations, width=width) for width in range(5, 19)])
    for other in others:
        assert other.matched >= 0.95 * first.matched
        assert other.written.get(GROWS, 0) < 0.02 * other.seen


def test_batches_of_ever_more_sizes_come_often_each() -> None:
    for found in evidence_of(*[trained(100, batch=batch) for batch in range(2, 16)]):
        assert found.matched > 0.85 * found.seen
        assert GROWS not in found.written


def test_layers_of_many_sizes_are_all_new_behind_a_loop_that_repeats() -> None:
    """Eight sizes arrive in a row, none of which can have come back yet."""
    _, many, more = evidence_of(trained(300), trained(50, layers=20), trained(50, layers=20, width=30))
    assert GROWS not in many.written and GROWS not in more.written


def test_every_loop_of_a_sweep_settles_where_its_kinds_grew_before() -> None:
    _, *sweep = evidence_of(decode(150, reads=True), *[trained(300, width=width) for width in range(5, 13)])
    for found in sweep:
        assert found.matched > 0.85 * found.seen
    assert sweep[-1].written[GROWS] < 2 * sweep[0].written[GROWS]


def test_a_branch_whose_sizes_grow_no_more_is_recorded_anew() -> None:
    """It begins with an operator that has the same sizes all the time."""
    weight = torch.randn(8, 8) / 3

    def branching(steps: int, *, grows: bool) -> Callable[[], list[Tensor]]:
        def loop() -> list[Tensor]:
            chosen, cache, x, made = random.Random(1), torch.ones(40, 8), torch.ones(1, 8), []
            for _ in range(steps):
                x = block(block(block(x, weight), weight), weight)
                if chosen.random() < 0.3:
                    x = torch.sin(x)
                    if grows:
                        cache = torch.cat([cache, x])
                    for _ in range(10):
                        x = torch.sin(attend(x, cache)) + x
                x = x / x.norm()
                made.append(torch.tensor(x.sum().item()))
            return made

        return loop

    grown, *_, later = evidence_of(branching(400, grows=True), *[branching(500, grows=False)] * 3)
    assert grown.written[GROWS] > 1000
    assert later.matched > 0.8 * later.seen, later


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.LayerNorm(16), nn.LayerNorm(16)
        self.three, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.wide = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.three(self.before(x)).chunk(3, -1)
        scores = (query @ key.mT / 4).masked_fill(torch.ones(x.size(1), x.size(1)).triu(1) > 0, -1e9)
        x = x + self.out(scores.softmax(-1) @ value)
        return x + self.wide(self.behind(x))


def training_and_samples(epochs: int, sample: Callable[[nn.Module], Tensor]) -> list[Callable[[], list[Tensor]]]:
    """For each epoch of 30 batches, the last one smaller, two loops: the epoch, and a sample of the model."""
    torch.manual_seed(0)
    net = nn.Sequential(Block(), Block(), nn.Linear(16, 16))
    start = {name: value.clone() for name, value in net.state_dict().items()}
    data = torch.randn(8, 24, 16)

    def epoch(number: int) -> Callable[[], list[Tensor]]:
        def loop() -> list[Tensor]:
            if number == 0:
                net.load_state_dict(start)
            optimizer, losses = torch.optim.SGD(net.parameters(), 0.01), []
            for batch in range(30):
                x = data if batch < 29 else data[:5]
                loss = (net(x) - x).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            return losses

        return loop

    return [loop for number in range(epochs) for loop in (epoch(number), lambda: [sample(net)])]


@torch.no_grad()
def without_cache(net: nn.Module) -> Tensor:
    """Each step computes everything again, so that all of it is of a new length."""
    made = torch.ones(1, 1, 16)
    for _ in range(20):
        made = torch.cat([made, torch.tanh(net(made)[:, -1:])], 1)
    return made


@torch.no_grad()
def with_cache(net: nn.Module) -> Tensor:
    cache = torch.ones(1, 3, 16)
    for _ in range(150):
        x = net(cache[:, -1:])
        cache = torch.cat([cache, torch.tanh(x + torch.softmax(x @ cache.mT, -1) @ cache)], 1)
    return cache


def test_samples_without_a_cache_amid_training() -> None:
    """All sizes of a sample are new, and come again in the next one."""
    found = evidence_of(*training_and_samples(6, without_cache))
    assert not any(GROWS in one.written for one in found)
    assert all(one.matched > 0.85 * one.seen for one in found[4:]), [one.matched / one.seen for one in found]


def test_a_model_that_trains_keeps_its_sizes_beside_a_cache_that_grows() -> None:
    found = evidence_of(*training_and_samples(6, with_cache))
    assert found[3].written[GROWS] > 100
    for epoch in found[2::2]:
        assert epoch.matched > 0.85 * epoch.seen, epoch
        assert epoch.written.get(GROWS, 0) < 0.05 * epoch.seen, epoch


def test_many_sizes_of_a_kind_that_settle_together_settle_no_later_the_next_time() -> None:
    def fixed(first: int) -> Callable[[], list[Tensor]]:
        def loop() -> list[Tensor]:
            torch.manual_seed(0)
            caches = [torch.randn(9 + width, width) for width in range(first, first + 6)]
            weights = [torch.randn(a.size(1), b.size(1)) / 3 for a, b in pairwise([*caches, caches[0]])]
            x, kept = torch.randn(1, first), []
            for _ in range(300):
                for weight, cache in zip(weights, caches, strict=True):
                    x = torch.tanh(x + attend(torch.tanh(x), cache)) @ weight
                kept.append(x)
            return kept

        return loop

    *_, last = evidence_of(decode(150, reads=True), *map(fixed, (4, 14, 24, 24)))
    assert last.matched > 0.8 * last.seen, last


def test_a_branch_whose_sizes_settle_is_recorded_anew() -> None:
    cache = torch.randn(64, 8)

    def branches() -> list[Tensor]:
        x, read = torch.ones(1, 8), []
        for lap in range(700):
            for _ in range(12):
                x = torch.tanh(x * 1.5) - 0.25
            if lap % 5 == 0:
                x = torch.cos(x)
                for _ in range(4):
                    x = torch.tanh(x + attend(x, cache))
            for _ in range(6):
                x = torch.tanh(x * 0.7) + 0.25
            read.append(x.sum().item())
        return [torch.tensor(read), x]

    grown, *_, last = evidence_of(decode(150, reads=True), branches, branches)
    assert grown.written[GROWS] > 100 * LAYERS
    assert last.matched > 0.95 * last.seen, last
