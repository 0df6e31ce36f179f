"""Iterations issued ahead of the flag that ends their loop, on a GPU: results, state and memory are those of eager."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good

from grape.options import Options
from grape.rewrite.control_flow import RewrittenFlow, rewrite_control_flow
from grape.runtime.accounts import policy
from grape.runtime.accounts.policy import decide
from grape.runtime.backends.cuda import backend as cuda
from grape.runtime.backends.cuda.poll import EventPoll
from grape.runtime.regions.replays import Replays
from grape.sessions import Cell, Session, close_engine
from tests.unit.test_early_stop import SOURCE, WHILE, namespace

ON_GPU = (
    ("manual_seed(1)) / 3", "manual_seed(1)).cuda() / 3"),
    ("torch.zeros(64, 8)", 'torch.zeros(64, 8, device="cuda")'),
    ("torch.zeros(1, dtype=torch.long)", 'torch.zeros(1, dtype=torch.long, device="cuda")'),
)


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(policy, "decide", lambda estimate: replace(decide(estimate), action="capture"))
    monkeypatch.setattr(Replays, "_weigh", lambda *_, **__: None)  # iterations this small may well be faster eagerly
    with torch.no_grad():
        yield
    close_engine()


def outcomes(names: dict[str, Any]) -> list[Any]:
    found = []
    for seed in range(20):
        names["written"].zero_()
        x = (torch.randn(8, generator=torch.Generator().manual_seed(seed)) * 5).cuda()
        number, at, seen = names["decode"](x, 0.0 if seed % 5 == 4 else 1.0 + seed % 4 * 3)
        found.append((number, at.tolist(), seen.tolist(), names["written"].view(torch.uint8).tolist()))
    return found


@pytest.mark.parametrize("bodies", [False, True], ids=["selects", "bodies"])
@pytest.mark.parametrize("source", [SOURCE, WHILE], ids=["for", "while"])
def test_wasted_iterations_change_nothing(
    source: str, bodies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_init = cuda.CudaBackend.__init__
    monkeypatch.setattr(cuda.CudaBackend, "__init__", partialmethod(plain_init, conditional_bodies=bodies))
    for plain, on_gpu in ON_GPU:
        assert plain in source
        source = source.replace(plain, on_gpu)
    made = rewrite_control_flow(source, filename="plain.py")
    assert isinstance(made, RewrittenFlow)
    plain_names, mine = namespace(tmp_path / "plain.py", source), namespace(tmp_path / "mine.py", made.source)
    expected = outcomes(plain_names)
    replays = 0
    for _ in range(2):
        session = Session(options=Options(), cell=Cell(name="c", source="", filename="c"), namespace=mine)
        session.open()
        found = outcomes(mine)
        session.close(None)
        assert found == expected and session.report is not None
        regions = {region["name"]: region for region in session.report.to_dict()["regions"]}
        print({name: (one["outcome"], one["reason"], one["replays"]) for name, one in regions.items()})
        loop = regions["loop of decode"]
        assert loop["verified"] in ("identical", None) and loop["wasted_iterations"] >= 0
        replays += loop["replays"]
    assert outcomes(mine) == expected
    assert replays, "no iteration was replayed, so nothing was tried"


def test_a_flag_is_read_as_it_was_when_it_was_posted() -> None:
    """Behind work that takes a while; the memory of the flag is written again before anybody looks."""
    poll, flag = EventPoll(), torch.tensor(False, device="cuda")
    square = torch.rand(2048, 2048, device="cuda")
    values = [turn % 3 == 1 for turn in range(40)]
    for value in values:
        square = (square @ square).clamp(-1, 1)
        flag.fill_(value)
        poll.post(flag)
    flag.fill_(True)
    assert poll.pending == len(values)
    assert [poll.take(wait=True) for _ in values] == values
    poll.post(flag)
    poll.clear()
    assert poll.pending == 0
