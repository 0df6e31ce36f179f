"""What a `grape.graph` shows of itself, and what is said while a call is looked at."""

from __future__ import annotations

import re

import pytest
import torch

from grape.runtime import GraphedFunction
from grape.runtime.backends.reference.backend import ReferenceBackend

pytestmark = pytest.mark.usefixtures("without_gradients", "without_eager_calls_in_between")


def step(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = torch.tanh(x @ x)
    return x


def reads(x: torch.Tensor) -> torch.Tensor:
    return step(x) * x.sum().item()


def test_its_repr_says_what_it_holds() -> None:
    graphed = GraphedFunction(step, backend=ReferenceBackend(), tolerance=0.0)
    assert repr(graphed) == "<grape.graph of step: not called yet>"
    graphed(torch.eye(4))
    assert repr(graphed) == "<grape.graph of step: 1 call, no graph yet>"
    for size in (4, 5):
        for _ in range(1000):
            graphed(torch.eye(size))
    pattern = r"<grape.graph of step: 2,001 calls, ([\d,]+) replayed by 2 graphs, [\d,]+ bytes>"
    shown = re.fullmatch(pattern, repr(graphed))
    assert shown is not None, repr(graphed)
    assert int(shown[1].replace(",", "")) > 1900
    graphed.release()
    assert repr(graphed) == "<grape.graph of step: not called yet>"


def test_its_repr_says_why_it_holds_nothing() -> None:
    graphed = GraphedFunction(reads, backend=ReferenceBackend(), tolerance=0.0)
    for number in range(60):
        graphed(torch.eye(4) * number)
    assert re.match(r"<grape.graph of reads: 60 calls, runs as written \(GR101: ", repr(graphed)), repr(graphed)
    graphed.release()


def test_progress_counts() -> None:
    graphed = GraphedFunction(step, backend=ReferenceBackend(), tolerance=0.0)
    graphed(torch.eye(4))
    assert graphed._region is not None
    said: list[str] = []
    graphed._region.context.progress = said.append
    for _ in range(200):
        graphed(torch.eye(4))
    assert said and len(set(said)) == len(said)
    assert said[0] == "observing step, call 2" and "capturing step, graph 1" in said
    graphed.release()
