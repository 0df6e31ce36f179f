"""What is recorded of a loop that comes again as a whole, and what can be asked of each fragment."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good
from torch import nn

import grape
from grape.streams import Settings, Stream, open_stream
from tests.property.stream_programs import device, needs_compiler  # noqa: F401

pytestmark = needs_compiler

SETTINGS = Settings(settled=0, patience=0, price=0, doubt=0)


def run() -> None:
    """A cell: it makes a network, and trains it for some steps of more than a segment."""
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.LayerNorm(6)) for _ in range(12)])
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x = torch.randn(4, 6)
    for _ in range(12):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()


def test_a_run_that_comes_again_is_served_by_its_iterations() -> None:
    stream = open_stream(SETTINGS)
    assert isinstance(stream, Stream), stream
    with stream:
        seen, recorded, matched = [], [], []
        for _ in range(7):
            before = stream.counts()
            run()
            now = stream.counts()
            seen.append(now.seen - before.seen)
            recorded.append(now.recorded - before.recorded)
            matched.append(now.matched - before.matched)
    assert max(recorded[2:]) < seen[0] / 2, "the whole run is no iteration"
    assert min(matched[2:]) > 0.5 * seen[0], "and no run goes without"


def test_what_became_of_fragments(device: str) -> None:  # noqa: F811
    stream = open_stream(SETTINGS)
    assert isinstance(stream, Stream), stream
    with stream:
        run()
        rows = stream.fragments()
    step = max(rows, key=lambda row: row["entered"] * row["operators"])
    assert step["live"] and not step["dead"] and not step["large"]
    assert step["operators"] > 100 and step["segments"] >= 2
    assert step["graphs"] == (0 if device == "cpu" else step["segments"])
    assert step["as_written"].get("host read", 0) >= 1


def test_a_fragment_that_has_not_earned_its_captures_is_not_live() -> None:
    stream = open_stream(Settings(device="pretended", settled=0, patience=0, price=1e6))
    assert isinstance(stream, Stream), stream
    with stream:
        run()
        rows = stream.fragments()
    assert rows and not any(row["live"] for row in rows)
    assert max(row["earned_ms"] for row in rows) > 0
    assert all(row["earned_ms"] < row["price_ms"] for row in rows if row["segments"])


def test_a_function_tells_of_its_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPE_REFERENCE", "1")
    with grape.stream(run) as step:
        assert step.fragments() == []
        step()
        assert any(row["live"] for row in step.fragments()), step.as_written
