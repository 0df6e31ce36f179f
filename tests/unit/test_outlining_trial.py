"""Whole iterations with a loop's graphs and as written, in turn: what is decided, and that the loop goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good

from grape.outlining import trial
from grape.outlining.trial import BLOCK, BLOCKS, SPOILT, Trial
from grape.runtime.regions.captures import Captures
from grape.sessions import close_engine, engine

from .test_outlining import BODY, Shell, loops, regions

FOR = f"for i in range(200):\n{BODY}    log.append(i)\n"
WHILE = f"i = 0\nwhile i < 200:\n    i += 1\n{BODY}    log.append(i)\n"
DEEPER = BODY.replace("\n ", "\n     ")
LEFT = f"for turn in range(40):\n    for i in range(14):\n    {DEEPER}"
LEFT += "        log.append(i)\n        if i == 11:\n            break\n"
RAISES = (
    f"for turn in range(40):\n  try:\n    for i in range(14):\n    {BODY.replace(chr(10) + ' ', chr(10) + '     ')}"
)
RAISES += "        log.append(i)\n        if i == 9:\n            raise ValueError\n  except ValueError:\n    pass\n"


SIDE = """
class Side(torch.nn.Module):
    def forward(self, x):
        return (x.sum() * 2 + 1).tanh() * 3
side = Side()
"""


@pytest.fixture
def shell() -> Iterator[Shell]:
    yield Shell()
    close_engine()


class Clock:
    """What `time.perf_counter` gives to trials: an iteration takes `live` seconds with graphs, `written` without."""

    def __init__(self, patch: pytest.MonkeyPatch, live: float, written: float, unserved: float = 0.0) -> None:
        self.turns: list[Trial] = []
        now, turn, known = [0.0], Trial.turn, [0]

        def counted(made: Trial) -> None:
            now[0] += unserved * (engine().context.captures - known[0])  # of the iteration before
            turn(made)
            known[0] = engine().context.captures
            self.turns.append(made)
            now[0] += written if made._written and not made.over else live

        patch.setattr(trial, "BACKENDS", ("tape",))
        patch.setattr(trial, "perf_counter", lambda: now[0])
        patch.setattr(Trial, "turn", counted)


def outcome(source: str, *, grape: bool) -> tuple[list[bytes], list[int]]:
    made = Shell()
    made.run(source, grape=grape)
    tensors = [made.space[name].numpy().tobytes() for name in ("x", "h")]
    return tensors, made.space["log"]


@pytest.mark.parametrize(("live", "written", "kept"), [(1.0, 2.0, True), (2.0, 1.0, False), (1.0, 1.0, True)])
@pytest.mark.parametrize("source", [FOR, WHILE, LEFT, RAISES], ids=["for", "while", "left", "raises"])
def test_a_loop_that_graphs_make_slower_runs_as_written(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, source: str, live: float, written: float, kept: bool
) -> None:
    clock = Clock(monkeypatch, live, written)
    expected = outcome(source, grape=False)
    torch.manual_seed(0)
    assert outcome(source, grape=True) == expected
    assert clock.turns and clock.turns[-1].over
    if source in (FOR, WHILE):
        assert len(clock.turns) == 2 * BLOCKS * BLOCK + 1
    (region,) = [one for one in regions() if one.calls > 2]
    assert (region.refused is None) is kept, region.refused
    if not kept:
        assert region.refused is not None and region.refused.code == "GR406"
        assert "an iteration of its loop took 2e+03 ms with the graph" in region.refused.why
    else:
        assert region.replays > 100
    assert not engine().context.comparing and engine().interceptor.active.free


@pytest.mark.parametrize(("news", "decided"), [(40, True), (400, False)])
def test_what_a_new_shape_takes_is_not_held_against_the_graphs(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, news: int, decided: bool
) -> None:
    """Blocks into which it falls are done again, and where each one has one nothing is decided."""
    clock = Clock(monkeypatch, 1.0, 2.0, unserved=100.0)
    shell.space["items"] = [torch.ones(5 + i if 50 < i < 50 + news and not i % 4 else 4) for i in range(300)]
    shell.run(f"for z in items:\n{BODY}    z = torch.tanh(z + h.sum())\n")
    (region,) = regions()
    assert region.refused is None and clock.turns[-1].over
    assert clock.turns[-1]._spoilt > 0 and (len(clock.turns[-1]._times[True]) == BLOCKS) is decided


def test_what_never_gets_a_graph_beside_them_keeps_no_slower_graphs(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another callable of the loop has a new shape at each call: a block is not in vain for that."""
    clock, pays = Clock(monkeypatch, 3.0, 1.0), Captures.pays
    monkeypatch.setattr(Captures, "pays", lambda one, shape: pays(one, shape) and shape.seen > 2)
    exec(SIDE, shell.space)
    shell.run(f"for i in range(300):\n{BODY}    log.append(i)\n    side(torch.randn(2, 3 + i))\n")
    assert clock.turns[-1].over and clock.turns[-1]._spoilt < SPOILT
    assert "GR406" in [one.refused.code for one in regions() if one.refused is not None and one.captures.decisions]


@pytest.mark.parametrize("source", [LEFT, RAISES, f"{FOR}probe()\n"], ids=["left", "raises", "for"])
def test_behind_a_loop_that_is_tried_all_is_as_before(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """However the loop was left: other callables may become regions, and what is outside of them is recorded."""
    clock, seen = Clock(monkeypatch, 2.0, 1.0), []

    def probe() -> None:
        context, active = engine().context, engine().interceptor.active
        assert active.outside is not None
        listens = context.tracer.recorder is active.outside or active.outside.overflowed
        seen.append((active.free, context.comparing, listens))

    shell.space["probe"] = partial(probe)  # no function of the notebook
    source = source.replace("net(h)", "torch.relu(h)")  # a module's call would bring the recording back
    shell.run(source if "probe" in source else source + "    probe()\n")
    assert clock.turns and clock.turns[-1].over
    assert {free for free, _, _ in seen} == {True} and not any(comparing for _, comparing, _ in seen)
    assert seen[-1][2]


def test_nobody_waits_for_the_device_in_a_call_of_a_region(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of a function that is called inside of one: its trial stands still until no region is active."""
    monkeypatch.setattr(trial, "BACKENDS", ("tape",))
    shell.run(FOR)
    (run,) = loops()[0].runs
    active, waits = engine().interceptor.active, []
    engine().context.observing = True
    monkeypatch.setattr(engine().context.backend, "synchronize", lambda: waits.append(1))
    made = Trial([run], engine().context, sees_end=True)
    active.free = False
    for _ in range(3 * BLOCK):
        made.turn()
        assert not active.free and not engine().context.comparing
    active.free = True
    engine().context.observing = False
    made.turn()  # in a later cell, without Grape on top
    assert waits == []
    engine().context.observing = True
    made.turn()
    assert waits == [1] and engine().context.comparing
    for _ in range(BLOCK):
        made.turn()
    assert not active.free  # as written
    made.pause()
    assert active.free and not engine().context.comparing
    engine().context.observing = False


def test_nothing_is_tried_on_the_cpu(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "turn", lambda made: pytest.fail("a trial"))
    shell.run(FOR)
    assert regions()[0].replays > 100


def test_a_loop_that_is_slower_on_this_machine_is_given_up(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the processor's time: on the CPU a graph of few operators costs more than they do."""
    monkeypatch.setattr(trial, "BACKENDS", ("tape",))
    monkeypatch.setattr(trial, "perf_counter", time.thread_time)
    shell.run(FOR)
    (region,) = regions()
    assert region.refused is not None and region.refused.code == "GR406", region.refused
    began = time.perf_counter()
    shell.run(FOR)
    assert time.perf_counter() - began < 30 and region.refused is not None
