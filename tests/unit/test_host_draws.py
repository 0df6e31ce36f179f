"""Regions that draw random numbers on the CPU beside their device: repeated where nothing uses them, else refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch import Tensor, nn

from grape.runtime import GraphedFunction
from grape.runtime.replaying.host_draws import HostDraws, host_draws
from grape.tracing import PositionFinder, Tracer, record
from tests.property.programs import eager_to_graph
from tests.unit.host_stand_in import HOST, HostedTape, a_host

CALLS = 12
_kept: list[Tensor] = []


@pytest.fixture(autouse=True)
def hosted() -> Iterator[None]:
    with torch.no_grad(), a_host(), eager_to_graph():
        yield
    _kept.clear()


def work(x: Tensor) -> Tensor:
    return (x.tanh() + 1).exp() * 0.5


def host(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=HOST)


class Layer(nn.Module):
    """As those of an encoder with LayerDrop."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        number = torch.rand([], dtype=HOST)
        return x if self.training and number < 0.1 else self.linear(x).tanh()


def compared(function: Callable[[Tensor], Any], *, seed: Callable[[int], int] = int) -> GraphedFunction:
    """Called beside its eager twin, from one generator state each: same results, same state afterwards."""
    graphed = GraphedFunction(function, backend=HostedTape(poison=True), tolerance=0.0)
    for call in range(CALLS):
        x = torch.full((3, 4), call / 10)
        torch.manual_seed(seed(call))
        expected, state = function(x), torch.get_rng_state()
        torch.manual_seed(seed(call))
        found = graphed(x)
        assert torch.equal(found, expected)
        assert torch.equal(torch.get_rng_state(), state), f"call {call} leaves another random state than eager"
    return graphed


def unused(draw: Callable[[], Any]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        draw()
        y = work(x)
        draw()
        return y

    return function


REPEATED: dict[str, Callable[[], Any]] = {
    "a number": lambda: torch.rand([], dtype=HOST),
    "many": lambda: torch.rand(5, 7, dtype=HOST),
    "normal": lambda: torch.randn(3, dtype=HOST),
    "normal with parameters": lambda: torch.normal(1.0, 2.0, (17,), dtype=HOST),
    "a permutation": lambda: torch.randperm(9, dtype=HOST),
    "integers": lambda: torch.randint(3, 9, (5,), dtype=HOST),
    "filled": lambda: torch.empty(3, dtype=HOST).uniform_(0.5, 1),
    "filled twice": lambda: torch.empty(20, dtype=HOST).normal_().exponential_(2.0),
    "filled zeros": lambda: torch.zeros(2, 3, dtype=HOST).bernoulli_(0.3),
    "filled up to": lambda: torch.empty(3, dtype=HOST).random_(5),
    "of different kinds": lambda: (torch.rand(2, dtype=HOST), torch.empty(3, dtype=HOST).geometric_(0.5)),
}


@pytest.mark.parametrize("name", REPEATED)
def test_numbers_that_nothing_uses_are_drawn_again(name: str) -> None:
    graphed = compared(unused(REPEATED[name]))
    evidence = graphed.evidence()
    assert evidence is not None and evidence.refused is None and evidence.replays >= CALLS - 6
    graphed.release()


def test_layers_that_draw_and_do_not_look() -> None:
    encoder = nn.Sequential(*[Layer() for _ in range(4)]).eval()
    graphed = compared(encoder)
    evidence = graphed.evidence()
    assert evidence is not None and evidence.refused is None and evidence.replays
    graphed.release()


def test_a_draw_between_calls_moves_the_stream() -> None:
    """Replays go on from where the person's own draws left the generator."""
    function = unused(lambda: torch.rand(3, dtype=HOST))
    graphed = GraphedFunction(function, backend=HostedTape(poison=True), tolerance=0.0)
    numbers: dict[str, list[float]] = {"eager": [], "graphed": []}
    for name, call in (("eager", function), ("graphed", graphed)):
        torch.manual_seed(3)
        for _ in range(CALLS):
            call(torch.ones(3, 4))
            numbers[name].append(float(torch.rand(())))
    evidence = graphed.evidence()
    assert numbers["graphed"] == numbers["eager"] and evidence is not None and evidence.replays
    graphed.release()


def _stored(x: Tensor, holder: Any = nn.Module()) -> Tensor:  # noqa: B008 - one for all calls, as a global would be
    holder.number = host(2)
    return work(x)


def _own_generator(generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    return unused(lambda: torch.rand(3, dtype=HOST, generator=generator))


def _forked(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        host(3)
    return work(x)


def _seeded(x: Tensor) -> Tensor:
    torch.manual_seed(5)
    host(3)
    return work(x)


def _seeded_itself(x: Tensor) -> Tensor:
    torch.default_generator.manual_seed(5)
    host(3)
    return work(x)


def _put_back(x: Tensor) -> Tensor:
    state = torch.get_rng_state()
    host(3)
    torch.set_rng_state(state)
    host(2)
    return work(x)


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "read": (lambda x: work(x) * (2.0 if host(1).item() < 2 else 3.0), "uses them"),
    "decides": (lambda x: work(x) if host() else x, "uses them"),
    "decides without being read": (lambda x: work(x) * (host().reshape(1).numel()), "uses them"),
    "written to": (lambda x: (host(2).add_(1), work(x))[1], "uses them"),
    "sent to the device": (lambda x: work(x) + host().to(torch.float32) * 0, "uses them"),
    "a shape to draw in": (lambda x: (torch.rand_like(host(3)), work(x))[1], "depends on more"),
    "chances": (lambda x: (torch.bernoulli(torch.full((3,), 0.5, dtype=HOST)), work(x))[1], "depends on more"),
    "filled depending on contents": (
        lambda x: (torch.rrelu_(torch.zeros(3, dtype=HOST), training=True), work(x))[1],
        "random numbers on the CPU",
    ),
    "a generator of its own": (_own_generator(torch.Generator()), "depends on more"),
    "kept": (lambda x: (_kept.append(host(2)), work(x))[1], "keeps them"),
    "kept in an attribute": (_stored, "keeps them"),
    "seeds": (_seeded, "manual_seed"),
    "seeds the generator itself": (_seeded_itself, ""),
    "forks": (_forked, ""),
    "puts the state back": (_put_back, ""),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("seed", [int, lambda call: 5], ids=["other seeds", "one seed"])
def test_numbers_that_something_uses_are_refused(name: str, seed: Callable[[int], int]) -> None:
    function, why = REFUSED[name]
    graphed = compared(function, seed=seed)
    evidence = graphed.evidence()
    assert evidence is not None and evidence.refused is not None and evidence.replays == 0
    assert evidence.refused.code == ("GR404" if name == "seeds" else "GR405") and why in evidence.refused.why, (
        evidence.refused
    )
    graphed.release()


def test_a_result_that_was_drawn_is_refused() -> None:
    graphed = GraphedFunction(lambda x: (work(x), host(2)), backend=HostedTape(poison=True), tolerance=0.0)
    for _ in range(CALLS):
        torch.manual_seed(1)
        assert torch.equal(graphed(torch.ones(3, 4))[1], torch.rand(2, dtype=HOST, generator=_seed(1)))
    evidence = graphed.evidence()
    assert evidence is not None and evidence.refused is not None and "keeps them" in evidence.refused.why
    graphed.release()


def _seed(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def test_a_region_without_draws_that_seeds_is_refused() -> None:
    """Also where the person sets the same seed before each call, so that no state shows it."""

    def function(x: Tensor) -> Tensor:
        torch.default_generator.manual_seed(7)
        return work(x)

    graphed = compared(function, seed=lambda call: 7)
    evidence = graphed.evidence()
    assert evidence is not None and evidence.refused is not None and evidence.replays == 0
    graphed.release()


class _Encoder(torch.nn.Module):
    """Draws a number for each layer also where it leaves none out, as encoders of speech in transformers did."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            probability = torch.rand([])
            if not (self.training and probability < 0.1):
                x = x + layer(x).tanh()
        return x


def test_an_encoder_that_leaves_layers_out_draws_numbers_that_can_be_drawn_again() -> None:
    """Traced on a device without contents, beside which the CPU is a host."""
    encoder = _Encoder().eval().to("meta")
    x = torch.empty(2, 9, 32, device="meta")
    tracer = Tracer(PositionFinder())
    torch.manual_seed(0)
    _, call, _ = record(tracer, torch.device("meta"), [x], lambda: encoder(x))
    left = torch.get_rng_state()
    found = host_draws(call)
    assert isinstance(found, HostDraws) and len(found.draws) == 3
    torch.manual_seed(0)
    found.repeat()
    assert torch.equal(torch.get_rng_state(), left)
