"""GR404: the region writes Python state that a replay would not write."""

from __future__ import annotations

import pytest

from grape.advisor.rules import gr404
from grape.model import Refused
from tests.unit.trace_builder import at, cell, region


def test_a_refusal_without_a_line_stands_at_the_region() -> None:
    refused = Refused(code="GR404", why="the call changes self.steps")
    (finding,) = gr404.check(cell(region(outcome="refused", refused=refused, line=6)))
    assert finding.message == "`step` stays eager: the call changes self.steps"
    assert (finding.at, finding.severity) == (at(6), "blocker")
    assert finding.advice == (
        "return the state from the call and pass it back in, or keep it in a tensor that is updated in place"
    )


def test_no_refusal_no_finding() -> None:
    assert not list(gr404.check(cell(region(outcome="replayed"))))


WRITES = [
    ("def step(x):\n    kept.append(x)\n    return x\n", "the number of attributes or items", "kept", 2),
    ("def step(x):\n    global n\n    n += 1\n    return x\n", "the global 'n'", "n", 3),
    ("def step(x):\n    seen['calls'] += 1\n    return x\n", "a value that the region reads", "seen['calls']", 2),
    ("def step(x):\n    return helper(x)\ndef helper(x):\n    log.add(1)\n", "a set", "log", 4),
    ("class step:\n    def __call__(self, x):\n        self.n += 1\n", "'n' of step", "self.n", 3),
    ("def step(x):\n    a.n = 1\n    b.m = 2\n", "'m' of object", "b.m", 3),
]


@pytest.mark.parametrize(("source", "why", "state", "line"), WRITES)
def test_the_state_is_named_at_the_statement_that_writes_it(source: str, why: str, state: str, line: int) -> None:
    refused = Refused(code="GR404", why=f"the call changes {why}, which a replay would not", at=at(1))
    (finding,) = gr404.check(cell(region(outcome="refused", refused=refused), source=source))
    assert finding.message == f"`step` changes `{state}` at each call, which a replay would not: it stays eager"
    assert finding.at is not None and finding.at.line == line
    assert finding.advice is not None and finding.advice.startswith(f"return `{state}` from the call")


@pytest.mark.parametrize(
    "source",
    [
        "def step(x):\n    y = []\n    y.append(x)\n    x[0] = 1\n    return y\n",  # its own list, and a tensor
        "def other(x):\n    kept.append(x)\n",
        "def step(x:\n",
    ],
)
def test_what_the_source_does_not_show_is_not_named(source: str) -> None:
    refused = Refused(code="GR404", why="the call changes a value that the region reads", at=at(1))
    (finding,) = gr404.check(cell(region(outcome="refused", refused=refused), source=source))
    assert finding.message.startswith("`step` stays eager: the call changes a value")


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        ("it calls print(), which a replay would not repeat", "do it after the call"),
        ("it calls random.random(), which a replay would not repeat", "draw the number with torch"),
    ],
)
def test_effects_have_their_own_advice(why: str, advice: str) -> None:
    refused = Refused(code="GR404", why=why, at=at(3))
    (finding,) = gr404.check(cell(region(outcome="refused", refused=refused)))
    assert finding.at == at(3)
    assert finding.advice is not None and finding.advice.startswith(advice)
