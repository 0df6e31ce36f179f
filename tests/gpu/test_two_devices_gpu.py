"""Two devices in one process: what one stream defers on the first of them is there before the second one needs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good
from torch import Tensor, nn

from grape.streams import Settings, Stream, open_stream, session
from tests.property.stream_programs import flat, needs_compiler

pytestmark = [
    needs_compiler,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.device_count() < 2, reason="there is one GPU"),
]

STEPS = 60
EAGER_TO_MATCH = Settings(device="cuda", shortest=1, hot=2, settled=0, patience=0, price=0, doubt=0)


class Halves(nn.Module):
    """The first half on one device, the second on the other; what one reads of the other is copied between them."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).to(first)
        self.back = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).to(second)
        self.second = second

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.back(self.front(x).to(self.second))
        return hidden


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    yield
    torch.cuda.synchronize()
    session.settle()
    assert session._current is None and not session._closed


def trained(first: str, second: str, *, split: bool) -> list[Tensor]:
    """Parameters, losses, states; with `split`, halves of a batch go one behind the other, as in a pipeline by hand."""
    torch.manual_seed(0)
    net = Halves(first, second)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    losses: list[Tensor] = []
    for step in range(STEPS):
        x = torch.randn(32, 64, device=first, generator=torch.Generator(first).manual_seed(step))
        optimizer.zero_grad()
        parts = x.chunk(2) if split else (x,)
        ahead = [net.front(part).to(second, non_blocking=True) for part in parts]
        loss = torch.stack([net.back(part).square().mean() for part in ahead]).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step % 10 == 0:
            loss.item()
        ahead[0].mul_(0)  # what was copied is the person's to change
    kept = [value for entry in optimizer.state.values() for value in entry.values()]
    return [one.detach().cpu() for one in (*net.parameters(), *losses, *kept)]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("places", [("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")])
def test_training_over_two_devices_leaves_the_same_bits(places: tuple[str, str], split: bool) -> None:
    plain = flat(trained(*places, split=split))
    assert flat(trained(*places, split=split)) == plain, "the program does not repeat itself"
    stream = open_stream(EAGER_TO_MATCH)
    assert isinstance(stream, Stream), stream
    with stream:
        for _ in range(2):
            assert flat(trained(*places, split=split)) == plain
    evidence = stream.evidence()
    print(places, split, evidence.seen, evidence.matched, dict(evidence.written))
    assert evidence.matched > 0.2 * evidence.seen
