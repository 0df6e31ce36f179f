"""GR404: the region writes Python state that a replay would not write."""

from __future__ import annotations

import pytest

from grape.advisor.rules.gr4xx import gr404
from grape.model import Reason, Refused
from tests.unit.trace_builder import at, cell, region


def test_a_refusal_without_a_line_stands_at_the_region() -> None:
    refused = Refused.because(Reason.CHANGES, changed="self.steps")
    (finding,) = gr404.check(cell(region(outcome="refused", refused=refused, line=6)))
    assert finding.message == "`step` stays eager: the call changes self.steps"
    assert (finding.at, finding.severity) == (at(6), "blocker")
    assert finding.advice == (
        "return the state from the call and pass it back in, or keep it in a tensor that is updated in place"
    )


def test_no_refusal_no_finding() -> None:
    assert not list(gr404.check(cell(region(outcome="replayed"))))


WRITES = [
    ("def step(x):\n    kept.append(x)\n    return x\n", {}, "kept", 2),
    ("def step(x):\n    global n\n    n += 1\n    return x\n", {"name": "n"}, "n", 3),
    ("def step(x):\n    seen['calls'] += 1\n    return x\n", {}, "seen['calls']", 2),
    ("def step(x):\n    return helper(x)\ndef helper(x):\n    log.add(1)\n", {}, "log", 4),
    ("class step:\n    def __call__(self, x):\n        self.n += 1\n", {"name": "n"}, "self.n", 3),
    ("def step(x):\n    a.n = 1\n    b.m = 2\n", {"name": "m"}, "b.m", 3),
    ("def step(x):\n    a.n = 1\n    b.m.append(x)\n", {"path": "b.m"}, "b.m", 3),
]


@pytest.mark.parametrize(("source", "named", "state", "line"), WRITES)
def test_the_state_is_named_at_the_statement_that_writes_it(
    source: str, named: dict[str, str], state: str, line: int
) -> None:
    refused = Refused.because(Reason.CHANGES_STATE, at(1), changed="a value", by="", **named)  # type: ignore[arg-type]
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
    refused = Refused.because(Reason.CHANGES, at(1), changed="a value that the region reads")
    (finding,) = gr404.check(cell(region(outcome="refused", refused=refused), source=source))
    assert finding.message.startswith("`step` stays eager: the call changes a value")


@pytest.mark.parametrize(
    ("call", "advice"), [("print", "do it after the call"), ("random.random", "draw the number with torch")]
)
def test_effects_have_their_own_advice(call: str, advice: str) -> None:
    refused = Refused.because(Reason.CALLS, at(3), call=call)
    (finding,) = gr404.check(cell(region(outcome="refused", refused=refused)))
    assert finding.at == at(3)
    assert finding.advice is not None and finding.advice.startswith(advice)
