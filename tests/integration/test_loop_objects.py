"""Loops whose iterations put other tensors into an object: a KV cache, a state of the person's."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch._dynamo  # noqa: F401 - imported by the first dispatch mode in some versions; it wraps functions for good
from IPython.core.interactiveshell import InteractiveShell

import grape
from grape.magics import load
from grape.sessions import engine

DECODER = """\
import torch, transformers
torch.manual_seed(0)
config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, bos_token_id=0, eos_token_id=0)
model = transformers.GPT2LMHeadModel(config).eval().requires_grad_(False)
prompt = torch.randint(0, 64, (3, 4))
beams = torch.randint(0, 3, (26, 3))
"""
DECODE = """\
with torch.inference_mode():
    out = model(prompt, use_cache=True)
    cache, ids = out.past_key_values, out.logits[:, -1:].argmax(-1)
    for beam in beams:
        out = model(ids, past_key_values=cache, use_cache=True)
        ids = out.logits[:, -1:].argmax(-1)
        cache.reorder_cache(beam)
"""
FUNCTION = "def decode(model, prompt, beams):\n" + re.sub("^", "    ", DECODE, flags=re.MULTILINE) + "    return out\n"

STATE = """\
import torch
torch.manual_seed(0)
w = torch.randn(6, 6) * 0.4
class State:
    def __init__(self):
        self.h, self.memory, self.steps = torch.zeros(2, 6), [torch.ones(2, 6)], 0
    def step(self, x):
        self.h = torch.tanh(x @ w + self.h)
        self.memory[0] = self.memory[0] * 0.9 + self.h
        return self.h * 0.5
    def count(self, x):
        self.steps += 1
        return x * 0.5
state = State()
x = torch.randn(2, 6)
"""


def replays_of_loop() -> dict[str, int]:
    return {r["name"]: r["replays"] for r in grape.last.to_dict()["regions"] if r["name"].startswith("loop")}


@pytest.mark.parametrize("form", ["cell", "function"])
def test_a_growing_cache_whose_beams_are_reordered_is_one_region(shell: InteractiveShell, form: str) -> None:
    shell.run_cell(DECODER + (FUNCTION if form == "function" else ""))
    cell = DECODE if form == "cell" else "out = decode(model, prompt, beams)\n"
    end = "cache = out.past_key_values; kept = [t.clone() for l in cache.layers for t in (l.keys, l.values)]\n"
    end += "logits = out.logits.clone(); del out, cache"
    shell.run_cell(cell + end)
    expected = [shell.user_ns["logits"], *shell.user_ns["kept"]]
    load(shell)
    replays = []
    for _ in range(6):
        assert shell.run_cell("%%grape\n" + cell + end).success
        for one, other in zip([shell.user_ns["logits"], *shell.user_ns["kept"]], expected, strict=True):
            assert one.equal(other)
        assert not {f["code"] for f in grape.last.to_dict()["findings"]} & {"GR404"}
        replays.append(sum(replays_of_loop().values()))
    assert replays[-1] >= 24, "some run eagerly, to be compared"
    (region,) = [r for r in grape.last.to_dict()["regions"] if r["name"].startswith("loop")]
    assert region["verified"] == "identical"
    most = sum(t.nbytes for t in shell.user_ns["kept"])
    assert region["copied_bytes_per_call"] < most / 10, (
        "but for a few, the cache lies where the next iteration reads it"
    )


def test_graphs_of_different_runs_follow_each_other(shell: InteractiveShell) -> None:
    """The first iterations are captured a run later than those behind them, which write where they would as well."""
    shell.run_cell(DECODER + FUNCTION.replace("beams)", "beams, lock)") + "import threading; lock = threading.Lock()\n")
    cell = "out = decode(model, prompt, beams, lock); logits = out.logits.clone(); del out\n"
    shell.run_cell(cell)
    expected = shell.user_ns["logits"]
    load(shell)
    for _ in range(4):
        assert shell.run_cell("%%grape\n" + cell).success
    (region,) = [one for one in engine().context.regions if one.name.startswith("loop")]
    before, blocked = region.replays, region.replay_counts.blocked
    assert shell.run_cell(cell).success
    assert shell.user_ns["logits"].equal(expected)
    assert (region.replays - before, region.replay_counts.blocked - blocked) == (26, 0)


def run(shell: InteractiveShell, cell: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The cell's names and replays at the third time."""
    for _ in range(3):
        assert shell.run_cell("%%grape\n" + cell).success
    return shell.user_ns, replays_of_loop()


def outcome(names: dict[str, Any]) -> list[Any]:
    state = names["state"]
    return [*(t.tolist() for t in (state.h, state.memory[0], names["x"])), state.steps]


def plainly(cell: str) -> list[Any]:
    names: dict[str, Any] = {}
    exec(STATE, names)
    for _ in range(3):
        exec(cell, names)
    return outcome(names)


LOOP = "with torch.no_grad():\n    for _ in range(30):\n        x = {}\n"


@pytest.mark.parametrize(
    ("line", "replayed"),
    [
        ("x * 0.9 + state.step(x)", True),
        ("x * 0.9 + state.step(x) + other.h", True),  # two names of one object
        ("x * 0.9 + holder.state.step(x)", True),
        ("state.step(x) + state.memory[0] * 0.1; state.h = state.h * 0.5", True),
        ("state.count(state.step(x)) + 1", False),  # a number that changes as well
    ],
)
def test_an_object_of_the_persons_is_handed_over(shell: InteractiveShell, line: str, replayed: bool) -> None:
    setup = STATE + "import types\nother = state\nholder = types.SimpleNamespace(state=state)\n"
    cell = LOOP.format(line)
    names: dict[str, Any] = {}
    exec(setup, names)
    for _ in range(3):
        exec(cell, names)
    shell.run_cell(setup)
    load(shell)
    found, replays = run(shell, cell)
    assert outcome(found) == outcome(names)
    assert found["other"] is found["state"] is found["holder"].state
    assert bool(sum(replays.values())) is replayed


def test_an_object_that_is_made_anew_between_cells_is_the_one_that_is_written(shell: InteractiveShell) -> None:
    cell = "state = State(); before = state\n" + LOOP.format("x * 0.9 + state.step(x)")
    shell.run_cell(STATE)
    load(shell)
    found, replays = run(shell, cell)
    assert outcome(found) == plainly(cell)
    assert found["before"] is found["state"]
    assert sum(replays.values()) > 20


def test_tensors_that_the_person_took_out_of_the_object_keep_their_values(shell: InteractiveShell) -> None:
    cell = "taken = []\n" + LOOP.format("x * 0.9 + state.step(x); taken.append(state.h)")
    names: dict[str, Any] = {}
    exec(STATE, names)
    for _ in range(3):
        exec(cell, names)
    shell.run_cell(STATE)
    load(shell)
    found, replays = run(shell, cell)
    assert [t.tolist() for t in found["taken"]] == [t.tolist() for t in names["taken"]]
    assert outcome(found) == outcome(names)
    assert sum(replays.values()) > 0
