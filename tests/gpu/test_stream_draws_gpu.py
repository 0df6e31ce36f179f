"""Random numbers of a stream on a GPU: every draw, and the generator at every point, are those of eager code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from grape.streams import Evidence, Settings, Stream, open_stream
from tests.property.stream_cases import CASES, batches, mlp
from tests.property.stream_programs import flat, needs_compiler

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]

DRAWN = "random numbers"
SETTINGS = Settings(device="cuda", settled=0, patience=0, price=0, doubt=0)


def agrees(function: Callable[[], Any]) -> Evidence:
    plains = []
    for _ in range(2):
        torch.manual_seed(1)
        plains.append(flat([function(), torch.cuda.get_rng_state()]))
    assert plains[0] == plains[1], "the program does not repeat itself"
    torch.manual_seed(1)
    stream = open_stream(SETTINGS)
    assert isinstance(stream, Stream), stream
    with stream:
        result = flat([function(), torch.cuda.get_rng_state()])
    evidence = stream.evidence()
    print(evidence)
    different = [place for place, (a, b) in enumerate(zip(result, plains[0], strict=True)) if a != b]
    assert not different, f"differs at {different[:5]}: {evidence}"
    assert evidence.launched > 0
    return evidence


def test_dropout_and_noise_are_deferred() -> None:
    evidence = agrees(lambda: CASES["dropout"]("cuda"))
    assert evidence.written.get(DRAWN, 0) == 0
    assert evidence.uncaptured == {}


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.rand_like(x),
        lambda x: torch.randn(4, 8, device="cuda"),
        lambda x: torch.rand(4, 8, device="cuda"),
        lambda x: torch.randint(0, 9, (4, 8), device="cuda"),
        lambda x: torch.randperm(32, device="cuda").view(4, 8),
        lambda x: torch.bernoulli(x.sigmoid()),
        lambda x: torch.empty_like(x).normal_(0, 2),
        lambda x: torch.empty_like(x).exponential_(),
        lambda x: torch.normal(x, 0.5),
        lambda x: torch.poisson(x.exp()),
        lambda x: torch.multinomial(x.softmax(-1), 8),
        lambda x: F.dropout2d(x[..., None, None], 0.4)[..., 0, 0],
        lambda x: F.gumbel_softmax(x),
        lambda x: F.rrelu(x, training=True),
        lambda x: torch.distributions.Gamma(x.exp(), 1.0).sample(),
    ],
)
def test_each_operator_that_draws(draw: Callable[[Tensor], Tensor]) -> None:
    def loop() -> list[Any]:
        x, out = torch.ones(4, 8, device="cuda"), []
        for _ in range(80):
            x = torch.tanh(x * 1.5 + 0.25) - draw(torch.tanh(x)).float().clamp(-3, 3) * 0.1
            out.append(x.sum())
        return out

    agrees(loop)


def test_whoever_moves_the_generator_between_two_draws() -> None:
    def loop() -> list[Any]:
        own, out = torch.Generator("cuda").manual_seed(3), []
        x = torch.ones(4, 8, device="cuda")
        for i in range(60):
            x = F.dropout(torch.tanh(x * 1.5), 0.5) + torch.rand(4, 8, device="cuda")
            out += [x.mean(), torch.rand(2, generator=own, device="cuda"), torch.cuda.get_rng_state()]
            if i % 7 == 6:
                torch.manual_seed(i)
            x = F.dropout(x, 0.1)
            if i % 5 == 4:
                with torch.random.fork_rng(devices=[0]):
                    torch.randn(2, device="cuda")
            if i % 11 == 10:
                torch.cuda.set_rng_state(out[2])
            x = F.dropout(x + 1, 0.1)
        return out

    agrees(loop)


def test_segments_of_one_step_share_where_the_generator_is_told() -> None:
    def loop() -> list[Any]:
        x, out = torch.ones(64, device="cuda"), []
        for _ in range(60):
            for _ in range(3):
                x = F.dropout(torch.tanh(x * 1.5 + 0.25), 0.2) + 0.1 * torch.randn_like(x)
                out.append(x.sum().item())
        return out

    evidence = agrees(loop)
    assert evidence.written.get(DRAWN, 0) == 0


def test_a_graph_of_the_person_that_draws() -> None:
    def loop() -> list[Tensor]:
        x, out = torch.ones(64, device="cuda"), []
        static, graph = torch.ones(64, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = F.dropout(static * 2, 0.5)
        for _ in range(50):
            x = F.dropout(torch.tanh(x * 1.5 + 0.25), 0.2)
            static.copy_(x)
            graph.replay()
            x = F.dropout(result, 0.2) + torch.rand_like(x)
            out.append(x.sum())
        return out

    agrees(loop)


def test_a_checkpoint_draws_again_what_it_drew() -> None:
    def loop() -> list[Any]:
        net, (xs, ys), losses = mlp("cuda"), batches("cuda", 20, 16, 32), []
        optimizer = torch.optim.SGD(net.parameters(), 0.05)
        for i in range(40):
            optimizer.zero_grad()
            h = checkpoint(lambda x: F.dropout(net[:2](x), 0.3), xs[i % 20], use_reentrant=bool(i % 2))
            loss = F.cross_entropy(net[2:](h), ys[i % 20])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return [losses, list(net.parameters())]

    agrees(loop)


def test_layers_of_transformers_with_dropout() -> None:
    def loop() -> list[Any]:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True).cuda()
        lstm = nn.LSTM(32, 16, num_layers=2, dropout=0.2, batch_first=True).cuda()
        parameters = [*layer.parameters(), *lstm.parameters()]
        optimizer, losses = torch.optim.AdamW(parameters, 1e-3), []
        x = torch.randn(4, 10, 32).cuda()
        for _ in range(30):
            optimizer.zero_grad()
            loss = lstm(layer(x))[0].pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return [losses, parameters]

    agrees(loop)
