"""The numbers of autograd's nodes after a cell under Grape are those that the plain cell leaves behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch.utils.hooks import RemovableHandle

from grape.options import Options
from grape.runtime.replaying import node_numbers
from grape.runtime.replaying.node_numbers import advance, in_backward, is_supported, numbered, unnumbered
from grape.runtime.state import unseen_handles
from grape.sessions import Cell, Session, close_engine

SETUP = """
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
data = torch.randn(8, 8)
def train(x):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()
def penalty(x):
    x = x.clone().requires_grad_()
    out = net(x).sum()
    (slope,) = torch.autograd.grad(out, x, create_graph=True)
    (slope.square().sum() + out).backward()
    optimizer.step(); optimizer.zero_grad()
def evaluate(x):
    return net(x).detach() * 2
"""
CELLS = {
    "a loop": SETUP.split("def train(x):\n")[1].split("    return")[0],
    "a function that trains": "    train(data)\n",
    "a gradient of a gradient": "    penalty(data)\n",
    "a function without gradients": "    evaluate(data)\n",
}


@pytest.mark.parametrize("name", CELLS)
def test_as_many_numbers_are_given_away_as_in_the_plain_cell(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a capture makes beyond that is caught up with in the threads of backward passes."""
    caught_up = []
    monkeypatch.setattr(node_numbers, "_catch_up", caught_up.append)
    # As in the notebook, loops are taken apart before they run.
    from IPython.core.interactiveshell import InteractiveShell

    from grape.magics import load, unload

    shell = InteractiveShell.instance()
    body = CELLS[name].replace("x)", "data)")
    source = f"for _ in range(30):\n{body}"
    load(shell)
    try:
        shell.run_cell(SETUP).raise_error()
        before = numbered()
        shell.run_cell(source).raise_error()
        plain = numbered() - before
        shell.run_cell(SETUP).raise_error()
        for _ in range(4):
            caught_up.clear()
            before = numbered()
            shell.run_cell(f"%%grape --no-widget\n{source}").raise_error()
            import grape

            assert grape.last is not None
            grape.last.to_dict(fixes=True)
            assert numbered() - before - sum(caught_up) == plain
    finally:
        unload(shell)
        close_engine()


def test_numbers_are_left_out() -> None:
    before = numbered()
    is_supported.cache_clear()
    assert is_supported()
    assert numbered() == before, "to ask takes none"
    advance(1000)
    advance(0)
    advance(-3)
    assert numbered() == before + 1000


def test_what_is_booked_on_the_person_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    caught_up: list[int] = []
    monkeypatch.setattr(node_numbers, "_catch_up", caught_up.append)
    with unnumbered() as booked:
        advance(5)
        with unnumbered():
            advance(2)
        booked.persons = 4
    with pytest.raises(ValueError), unnumbered():
        advance(1)
        raise ValueError
    assert caught_up == [3, 1]


def test_a_backward_on_the_cpu_runs_in_the_calling_thread() -> None:
    seen: list[Any] = []
    assert in_backward(torch.device("cpu"), lambda: seen.append(threading.get_ident())) is None
    assert not seen


def test_a_build_without_the_counter_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_numbers, "_search", lambda: None)
    before = numbered()
    advance(10)
    assert numbered() == before
    session = Session(options=Options(), cell=Cell(name="c", source="", filename="c"), namespace={})
    session.open()
    session.close(None)
    close_engine()


def test_a_thread_that_cannot_be_reached_ends_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fails(device: torch.device, function: Any) -> None:
        asked.append(device)
        raise RuntimeError("no backward now")

    monkeypatch.setattr(node_numbers, "in_backward", fails)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: True, raising=False)
    with unnumbered():
        advance(1)
    assert asked == [torch.device("cuda", 0), torch.device("cuda", 1)]


def test_a_backward_of_our_own_looks_like_no_hook() -> None:
    """Guards look for hooks anew where the number of the next handle moves: 1.3 ms for a module of 48 parameters."""
    before = RemovableHandle.next_id
    in_backward(torch.device("cpu"), lambda: None)
    assert RemovableHandle.next_id == before


def test_a_handle_that_another_thread_takes_meanwhile_stays_seen() -> None:
    module = torch.nn.Linear(2, 2)
    before = RemovableHandle.next_id
    with unseen_handles() as handles:
        handles.append(module.register_forward_hook(lambda *_: None))
        theirs = module.register_forward_hook(lambda *_: None)  # as of another thread
    assert RemovableHandle.next_id == before + 2 and theirs.id == before + 1
