"""What captures take from torch's allocator and from cuBLAS, and what of a GPU's operators tells iterations apart."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from grape.streams import Settings, Stream, open_stream
from tests.gpu.test_streams_gpu import EAGER_TO_MATCH
from tests.property.stream_programs import needs_compiler

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]


def large(x: Tensor) -> tuple[Tensor, Tensor]:
    a = (x * 1.5).tanh()
    b = a @ a
    return b + 1, a.relu()


def test_results_that_were_cut_from_chunks_outlive_their_graphs() -> None:
    x = torch.randn(1024, 1024, device="cuda")
    expected = [one.clone() for one in large(x)]
    stream = open_stream(EAGER_TO_MATCH)
    assert isinstance(stream, Stream)
    with stream:
        kept = [large(x) for _ in range(12)]
        assert stream.evidence().captured > 0
    junk = [torch.full((1024, 1024), float("nan"), device="cuda") for _ in range(64)]
    for pair in kept:
        assert all(torch.equal(one, want) for one, want in zip(pair, expected, strict=True))
    del junk


def test_workspaces_that_torch_gave_back() -> None:
    x = torch.randn(512, 512, device="cuda")
    layer = torch.nn.Linear(512, 512).cuda()
    with torch.no_grad():
        expected = layer(x)
        stream = open_stream(EAGER_TO_MATCH)
        assert isinstance(stream, Stream)
        with stream:
            for turn in range(24):
                if turn in (8, 16):
                    torch._C._cuda_clearCublasWorkspaces()
                assert torch.equal(layer(x) + (turn > 12) * 0.0, expected)
    assert torch._C._cuda_clearCublasWorkspaces.__class__.__name__ == "builtin_function_or_method"


def test_a_copy_to_the_host_ends_an_iteration_as_any_read_does() -> None:
    """An agent that acts at random or as its network says, and reads that by `.cpu()`: nothing has a period."""
    choice = random.Random(0)
    network = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2)).cuda()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    seen = torch.randn(64, 4, device="cuda")
    stream = open_stream(Settings(device="cuda", price=0, doubt=0))
    assert isinstance(stream, Stream), stream
    acted = 0
    with stream:
        for step in range(1200):
            if choice.random() < 0.5:
                with torch.no_grad():
                    acted += int(network(seen[:1]).argmax().cpu())
            if step % 2 == 0:
                optimizer.zero_grad()
                network(seen).pow(2).mean().backward()
                optimizer.step()
    evidence = stream.evidence()
    assert 0 <= acted <= 1200
    assert evidence.matched > 0.5 * evidence.seen, evidence
