"""Random loops with state that grows: what they leave behind under operator streams is what they leave without."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from grape.streams import Evidence, Stream, open_stream
from tests.property.stream_programs import flat, needs_compiler, settings_of

pytestmark = [pytest.mark.filterwarnings("ignore"), needs_compiler]

WIDTH = 6
STEPS = 110
PROGRAMS = 14
Act = Callable[["Loop", random.Random], None]


class Stopped(Exception):
    pass


class Loop:
    """`x` is what the loop carries, `caches` grow, `slots` is memory of which ever more is used."""

    def __init__(self, seed: int, device: str) -> None:
        torch.manual_seed(seed)
        self.weights = [torch.randn(WIDTH, WIDTH, device=device) / 3 for _ in range(3)]
        self.biases = [torch.randn(WIDTH, device=device) for _ in range(2)]
        self.x = torch.randn(1, WIDTH, device=device)
        self.caches = [torch.randn(2, WIDTH, device=device) for _ in range(3)]
        self.slots, self.used = torch.zeros(STEPS * 8, WIDTH, device=device), 1
        self.kept: list[Any] = []

    def rest(self) -> None:
        self.x = self.x / (1 + self.x.norm())


def _chain(loop: Loop, r: random.Random) -> None:
    for _ in range(r.randint(2, 8)):
        loop.x = torch.tanh(loop.x @ r.choice(loop.weights) + r.choice(loop.biases)) * r.choice([0.5, 1.25])


def _append(loop: Loop, r: random.Random) -> None:
    k = r.randrange(3)
    loop.caches[k] = torch.cat([loop.caches[k], loop.x])


def _attend(loop: Loop, r: random.Random) -> None:
    cache = r.choice(loop.caches)
    loop.x = loop.x + torch.softmax(loop.x @ cache.T, -1) @ cache


def _fixed(loop: Loop, r: random.Random) -> None:
    loop.x = loop.x + torch.softmax(loop.x @ loop.weights[0].T, -1) @ loop.weights[0]


def _last_row(loop: Loop, r: random.Random) -> None:
    loop.x = loop.x + r.choice(loop.caches)[-1:].exp().clamp(max=2)


def _last_columns(loop: Loop, r: random.Random) -> None:
    loop.x = loop.x + r.choice(loop.caches).T.contiguous()[:, -1:].T.sin()


def _in_place(loop: Loop, r: random.Random) -> None:
    with torch.no_grad():
        r.choice(loop.caches)[-1].mul_(0.75)


def _in_all_places(loop: Loop, r: random.Random) -> None:
    with torch.no_grad():
        r.choice(loop.caches).mul_(0.99).add_(loop.x * 0.01)


def _write_slot(loop: Loop, r: random.Random) -> None:
    loop.slots[loop.used] = loop.x[0].detach()
    loop.used += 1


def _read_slots(loop: Loop, r: random.Random) -> None:
    loop.x = loop.x + loop.slots[: loop.used].mean(0, keepdim=True)


def _keep(loop: Loop, r: random.Random) -> None:
    loop.kept.append(r.choice([loop.x, loop.caches[0], loop.caches[1][1:], loop.x * 2]))


def _read(loop: Loop, r: random.Random) -> None:
    loop.kept.append(loop.x.sum().item())


def _gradient(loop: Loop, r: random.Random) -> None:
    with torch.enable_grad():
        w = loop.weights[2].detach().requires_grad_()
        (torch.cat([loop.x.detach(), loop.caches[2].detach()]) @ w).square().mean().backward()
    assert w.grad is not None
    loop.x = loop.x + w.grad.mean(0, keepdim=True)


def _draw(loop: Loop, r: random.Random) -> None:
    loop.x = loop.x + torch.rand(len(loop.caches[1]), 1, device=loop.x.device).mean()


ACTS: tuple[Act, ...] = (
    *(_chain, _chain, _append, _append, _attend, _fixed, _last_row, _last_columns, _in_place, _in_all_places),
    *(_write_slot, _read_slots, _keep, _read, _gradient, _draw),
)


def _crop(loop: Loop, r: random.Random) -> None:
    k = r.randrange(3)
    loop.caches[k] = loop.caches[k][-r.choice([1, 2, 5]) :]


def _settle(loop: Loop, r: random.Random) -> None:
    loop.caches = [cache[:3].clone() for cache in loop.caches]


def _raise(loop: Loop, r: random.Random) -> None:
    try:
        loop.caches[0] = torch.cat([loop.caches[0], loop.x])
        raise Stopped
    except Stopped:
        loop.kept.append("stopped")


def program(seed: int, device: str = "cpu") -> Callable[[], list[Any]]:
    r = random.Random(seed)
    acts = [_chain, _append, _attend, *r.choices(ACTS, k=r.randint(4, 12))]
    draws = [r.randrange(1 << 30) for _ in acts]
    seldom = {step: r.choice([_crop, _settle, _raise, _read]) for step in r.sample(range(STEPS), r.choice([0, 1, 4]))}
    parts = r.choice([1, 1, 2])  # the loop comes again, as a cell does

    def run() -> list[Any]:
        found: list[Any] = []
        for _ in range(parts):
            loop = Loop(seed, device)
            with torch.set_grad_enabled(seed % 3 == 0):
                for step in range(STEPS):
                    for act, draw in zip(acts, draws, strict=True):
                        act(loop, random.Random(draw))  # the same choices at each step
                    if step in seldom:
                        seldom[step](loop, random.Random(step))
                    loop.rest()
                    loop.x = loop.x.detach()
                    loop.caches = [cache.detach() for cache in loop.caches]
            found += [loop.x, *loop.caches, loop.slots, *loop.kept]
        return found

    return run


def agree(seed: int, device: Literal["cpu", "cuda"] = "cpu") -> Evidence:
    run = program(seed, device)
    plain = flat(run())
    settings = settings_of(seed, "cuda" if device == "cuda" else "auto")
    pretends = device == "cpu" and seed % 2 == 0
    stream = open_stream(replace(settings, device="pretended", price=0) if pretends else settings)
    assert isinstance(stream, Stream), stream
    with stream:
        result: list[Tensor] = run()
    found = flat(result)
    different = [place for place, (a, b) in enumerate(zip(plain, found, strict=True)) if a != b]
    assert not different, f"program {seed} differs at {different[:5]}: {stream.evidence()}"
    return stream.evidence()


@pytest.mark.parametrize("part", range(2))
def test_loops_with_state_that_grows_agree_bit_by_bit(part: int) -> None:
    found = [agree(seed) for seed in range(part * PROGRAMS, (part + 1) * PROGRAMS)]
    assert sum(one.matched > 0 for one in found) > 0.6 * PROGRAMS
    assert sum("sizes that grow" in one.written for one in found) > 0.3 * PROGRAMS


@pytest.mark.random_long
@pytest.mark.timeout(0)
def test_many_loops_agree_bit_by_bit(request: pytest.FixtureRequest) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    draw, grown = random.Random(seed), 0
    for _ in range(request.config.getoption("--grape-random")):
        grown += "sizes that grow" in agree(draw.randrange(10_000, 1 << 40)).written
    print(f"loops that Random({seed}) drew; something grew in {grown}")
