"""Captures on a real GPU: host constants, recovery after failure, streams, and a whole decode under a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo  # some libraries import it later, and it wraps functions of torch for good

from grape.options import Options
from grape.runtime import GraphedFunction
from grape.runtime.accounts import policy
from grape.runtime.accounts.policy import decide
from grape.runtime.backends.cuda.backend import CudaBackend
from grape.runtime.backends.protocol import CaptureFailed
from grape.runtime.regions import replays
from grape.runtime.regions.replays import Replays
from grape.sessions import Cell, Session


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(autouse=True)
def capture_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "decide", lambda estimate: replace(decide(estimate), action="capture"))
    monkeypatch.setattr(Replays, "_weigh", lambda *_, **__: None)  # a graph this small may well be slower


def test_constants_from_the_host_and_the_random_stream(device: torch.device) -> None:
    weight = torch.randn(64, 64, device=device)

    def step(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x @ weight) * torch.tensor(2.0, device=device)
        y = torch.nn.functional.dropout(y, 0.5)
        y[0] = 1.0
        return y

    graphed = GraphedFunction(step, backend=CudaBackend(device), tolerance=0.0)
    with torch.no_grad():
        for _ in range(40):
            x = torch.randn(8, 64, device=device)
            before = torch.cuda.get_rng_state()
            found = graphed(x)
            after = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(before)
            assert found.equal(step(x))
            assert torch.cuda.get_rng_state().equal(after)
    evidence = graphed.evidence()
    assert evidence is not None and evidence.refused is None and evidence.replays > 20
    graphed.release()


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x.sum().item(),
        lambda x: torch.nonzero(x),
        lambda x: 1 / 0,
        lambda x: torch.cuda.synchronize(),
        lambda x: x.cpu(),
    ],
    ids=["item", "nonzero", "exception", "synchronize", "cpu"],
)
def test_a_failed_capture_leaves_everything_usable(device: torch.device, body: Callable[[torch.Tensor], Any]) -> None:
    backend = CudaBackend(device)
    x = torch.randn(16, 16, device=device)
    with pytest.raises(Exception, match=r"captur|division"):
        backend.capture(lambda: body(x))
    torch.manual_seed(3)
    assert torch.rand(3, device=device).isfinite().all()
    graph, result = backend.capture(lambda: (x @ x) + torch.rand(16, 16, device=device))
    torch.manual_seed(5)
    graph.replay()
    torch.manual_seed(5)
    assert result.equal((x @ x) + torch.rand(16, 16, device=device))
    backend.close()


def test_calls_on_another_stream_are_eager(device: torch.device) -> None:
    graphed = GraphedFunction(lambda x: (x * 2).relu() + 1, backend=CudaBackend(device), tolerance=0.0)
    x = torch.randn(32, device=device)
    with torch.no_grad():
        for _ in range(20):
            graphed(x)
        evidence = graphed.evidence()
        assert evidence is not None and evidence.replays
        other = torch.cuda.Stream()
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            for _ in range(5):
                assert graphed(x).equal((x * 2).relu() + 1)
        torch.cuda.current_stream().wait_stream(other)
    after = graphed.evidence()
    assert after is not None and after.replays == evidence.replays
    graphed.release()


def test_generate_under_a_session(device: torch.device, closed_engine: None) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=3, n_embd=96, n_head=4, vocab_size=500, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).half().to(device).eval()
    prompt = torch.randint(1, 500, (2, 5), device=device)
    code = "tokens = model.generate(prompt, max_new_tokens=24, min_new_tokens=24, do_sample=False, pad_token_id=0)"
    space: dict[str, Any] = {"model": model, "prompt": prompt, "__name__": "__main__"}
    exec(code, space)
    expected = space["tokens"]
    for _ in range(4):
        session = Session(options=Options(), cell=Cell(name="In[1]", source=code, filename="x"), namespace=space)
        session.open()
        exec(code, space)
        session.close(None)
        assert space["tokens"].equal(expected)
    report = session.report
    assert report is not None
    (main,) = [r for r in report.regions if r.name.startswith("GPT2LMHeadModel")]
    assert main.outcome == "replayed" and main.replays == main.calls == 24 and main.verified == "identical"
    assert {"GR202"} <= {finding.code for finding in report.findings}


def test_a_region_inside_an_autocast_block(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Casts that autocast has cached in earlier calls are no part of the graph, and the graph leaves none behind."""
    torch.manual_seed(0)
    monkeypatch.setattr(replays, "WEIGHED_AT", ())  # it is too small to be worth a graph
    module = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32)).to(device)
    graphed = GraphedFunction(module, backend=CudaBackend(device), tolerance=0.0)
    with torch.no_grad(), torch.autocast("cuda", torch.float16):
        for _ in range(40):
            x = torch.randn(16, 32, device=device)
            assert graphed(x).equal(module(x))
    evidence = graphed.evidence()
    assert evidence is not None and evidence.refused is None and evidence.replays > 10
    graphed.release()


def test_a_capture_within_a_capture_is_refused(device: torch.device) -> None:
    backend, other = CudaBackend(device), CudaBackend(device)
    x = torch.ones(4, device=device)

    def body() -> torch.Tensor:
        with pytest.raises(CaptureFailed, match="already being captured"):
            other.capture(lambda: x + 1)
        return x + 2

    graph, result = backend.capture(body)
    graph.replay()
    assert result.tolist() == [3.0] * 4
    backend.close()
    other.close()
