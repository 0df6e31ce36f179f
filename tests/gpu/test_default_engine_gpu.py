"""On a GPU operator streams serve a cell from its first run on, and regions look once that was paid for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good
from IPython.core.interactiveshell import InteractiveShell

import grape
from grape.magics import load, unload
from grape.options import ENGINE, REFERENCE
from grape.sessions import close_engine, engine
from grape.sessions.streamed import lead
from grape.streams import shared
from tests.property.stream_programs import needs_compiler

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]

SETUP = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(40)]).cuda()
data = torch.randn(16, 64, device="cuda")
"""
TRAIN = """
torch.manual_seed(1)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(400):
    optimizer.zero_grad()
    loss = (model(data) - data).square().mean()
    loss.backward()
    optimizer.step()
    loss.item()
"""
INFER = """
with torch.no_grad():
    y = data
    for _ in range(300):
        y = net(y).tanh()
"""


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.setenv(ENGINE, "auto")
    monkeypatch.delenv(REFERENCE, raising=False)
    close_engine()
    shell = InteractiveShell.instance()
    load(shell)
    run(shell, SETUP)
    monkeypatch.setattr(engine().context, "unhurried", False)  # as the engine of an earlier test may be
    yield shell
    unload(shell)
    close_engine()


def run(shell: InteractiveShell, source: str) -> Any:
    shell.run_cell(source).raise_error()


def under_grape(shell: InteractiveShell, source: str) -> dict[str, Any]:
    run(shell, f"%%grape --no-widget\n{source}")
    assert grape.last is not None
    return grape.last.to_dict()


def test_training_is_streamed_and_captures_anew_what_it_has_paid_for(shell: InteractiveShell) -> None:
    run(shell, TRAIN)
    plain = [one.clone() for one in shell.user_ns["model"].parameters()]
    for number in range(3):
        report = under_grape(shell, TRAIN)
        (stream,) = report["streams"]
        assert report["cell"]["engine"] == "streams" and stream["backwards"] == 400
        assert all(one.equal(other) for one, other in zip(shell.user_ns["model"].parameters(), plain, strict=True))
        assert stream["matched"] > (0.4, 0.7, 0.7)[number] * stream["operators"], stream
    assert stream["rested"] <= 4, "the new model's graphs are paid by what was saved with the others"
    (past,) = engine().history._past.values()
    assert past.led is not None and past.led.trains and past.led.runs == 3


def test_regions_look_beside_the_stream_and_results_are_the_same(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lead, "LONG_MS", 0.0)
    run(shell, INFER)
    plain = shell.user_ns["y"].clone()
    engines = []
    for _ in range(8):
        report = under_grape(shell, INFER)
        engines.append(report["cell"]["engine"])
        assert shell.user_ns["y"].equal(plain), engines
        if engines[-1] == "regions":
            break
    else:
        (past,) = engine().history._past.values()
        assert past.led is not None and past.led.saved < 0.5, "streams saved too little to pay for a look"
        pytest.skip("streams save too little here")
    assert engines[:3] == ["streams"] * 3
    assert shared.stream is not None and shared.stream.is_open, "it is paused while regions look"
    for _ in range(3):
        report = under_grape(shell, INFER)
        assert shell.user_ns["y"].equal(plain)
    served = report["streams"][0]["matched"] if report["streams"] else report["cell"]["served"]
    assert served
    torch.cuda.synchronize()
