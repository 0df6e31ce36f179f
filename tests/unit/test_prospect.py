"""Whether a cell goes on being looked at, is served by its graphs, or runs as written."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from grape.model import Decision, Position, Reason, Refused, RegionEvidence, ShapeCount
from grape.runtime.accounts.settling import Replayed
from grape.sessions.prospect import Gain, gain_of, prospect

HERE = Position(file="In[1]", line=1, function="f")
WAITS = Decision(action="wait", shapes="", seen=1, expected_calls=1.0, saving_ms=2.0, capture_ms=90.0, why="")
REFUSED = Refused.because(Reason.CHANGES_ARGUMENT)
OBSERVED = RegionEvidence(name="f", at=HERE, end_line=2, outcome="observed", refused=None, calls=9, replays=0)
KNOWN: dict[str, Any] = {
    "runs": 2,
    "regions": (OBSERVED,),
    "gain": Gain(made_ms=400.0),
    "plain_ms": 2000.0,
    "has_graphs": True,
    "captured": False,
    "denied": False,
    "serves": True,
}
CASES: dict[str, tuple[dict[str, Any], tuple[bool, bool]]] = {
    "graphs that pay serve": ({}, (True, True)),
    "what was captured just now may lead to more": ({"captured": True}, (False, True)),
    "but not for ever": ({"captured": True, "runs": 4}, (True, True)),
    "in a short cell, too": ({"captured": True, "plain_ms": 200.0}, (False, True)),
    "who saw nothing for want of an allowance gives nothing up": (
        {"denied": True, "runs": 1, "has_graphs": False, "regions": ()},
        (False, False),
    ),
    "graphs that save 1% do not serve": ({"gain": Gain(made_ms=20.0)}, (True, False)),
    "nor do graphs that lose": ({"gain": Gain(made_ms=-20.0)}, (True, False)),
    "what is waited for may pay": (
        {"gain": Gain(foreseen_ms=400.0), "regions": (replace(OBSERVED, decisions=(WAITS,)),), "has_graphs": False},
        (False, False),
    ),
    "but is not waited for in a short cell": (
        {
            "gain": Gain(foreseen_ms=400.0),
            "regions": (replace(OBSERVED, decisions=(WAITS,)),),
            "has_graphs": False,
            "plain_ms": 200.0,
        },
        (True, False),
    ),
    "a first run tells little": ({"runs": 1, "gain": Gain(), "has_graphs": False}, (False, False)),
    "but that all is refused": (
        {"runs": 1, "has_graphs": False, "regions": (replace(OBSERVED, refused=REFUSED),)},
        (True, False),
    ),
    "a backend that serves nobody": ({"runs": 1, "serves": False, "gain": None}, (True, True)),
    "graphs that save less than what would serve instead make room, after a first run": (
        {"runs": 1, "gain": Gain(made_ms=300.0, foreseen_ms=400.0), "bar": 0.4},
        (True, False),
    ),
    "half of what they are expected to save counts as well": (
        {"runs": 1, "gain": Gain(made_ms=300.0, foreseen_ms=1100.0), "bar": 0.4},
        (False, True),
    ),
    "and no more": (
        {"runs": 1, "gain": Gain(made_ms=300.0, foreseen_ms=900.0), "bar": 0.4},
        (True, False),
    ),
    "but for what is waited for no longer": (
        {"gain": Gain(made_ms=700.0, foreseen_ms=900.0), "bar": 0.4},
        (True, False),
    ),
    "nor for what a second run did not capture": (
        {
            "gain": Gain(foreseen_ms=900.0),
            "bar": 0.4,
            "has_graphs": False,
            "regions": (replace(OBSERVED, decisions=(WAITS,)),),
        },
        (True, False),
    ),
    "graphs that save more stay": ({"gain": Gain(made_ms=900.0), "bar": 0.4}, (True, True)),
    "graphs whose gain does not matter make no room": ({"gain": None, "bar": 0.4}, (True, True)),
    "graphs whose gain does not matter": ({"gain": None}, (True, True)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_comes_next(name: str) -> None:
    changes, (settled, served) = CASES[name]
    found = prospect(**KNOWN | changes)
    assert (found.settled, found.served) == (settled, served)


def test_the_reason_names_the_share() -> None:
    found = prospect(**KNOWN | {"gain": Gain(made_ms=20.0)})
    assert found.why == "graphs would save 1% of the cell, too little to stand between"
    assert prospect(**KNOWN | {"gain": Gain(), "has_graphs": False}).why is None
    waiting = {"gain": Gain(), "has_graphs": False, "plain_ms": 200.0}
    found = prospect(**KNOWN | waiting | {"regions": (replace(OBSERVED, decisions=(WAITS,)),)})
    assert found.why == "captures would cost more than they save"


@pytest.mark.parametrize(
    ("changes", "outbid", "why"),
    [
        ({"gain": Gain(made_ms=400.0)}, True, "graphs would save 20% of the cell"),
        ({"gain": Gain(foreseen_ms=20.0), "runs": 1}, True, None),
        ({"gain": Gain(made_ms=20.0)}, False, "graphs would save 1% of the cell, too little to stand between"),
        ({"gain": Gain(), "has_graphs": False, "regions": (replace(OBSERVED, refused=REFUSED),)}, False, None),
        ({"gain": Gain(made_ms=400.0), "bar": None}, False, None),
    ],
)
def test_graphs_that_made_room_are_remembered(changes: dict[str, Any], outbid: bool, why: str | None) -> None:
    found = prospect(**KNOWN | {"bar": 0.4} | changes)
    assert (found.outbid, found.why) == (outbid, why)


@dataclass
class _Shape:
    decision: Decision | None = None


@dataclass
class _Captures:
    decisions: list[Decision] = field(default_factory=list)


@dataclass
class _Region:
    calls_in_run: int
    name: str = "f"
    parent: str | None = None
    refused: Refused | None = None
    entries: tuple[int, ...] = ()
    shapes: dict[int, _Shape] = field(default_factory=dict)
    captures: _Captures = field(default_factory=_Captures)


def test_gains_are_those_of_all_calls_of_a_run() -> None:
    measured: Any = _Region(100, entries=(1,))
    slower: Any = _Region(10, entries=(1,))
    fresh: Any = _Region(50, entries=(1,), captures=_Captures([replace(WAITS, action="capture")]))
    waiting: Any = _Region(20, shapes={1: _Shape(WAITS), 2: _Shape()})
    inside: Any = _Region(90, "g", "f", shapes={1: _Shape(WAITS)})  # a graph of its caller would hold it
    refused: Any = _Region(1000, refused=REFUSED, shapes={1: _Shape(WAITS)})
    replayed = [
        Replayed(region=measured, replays=10, took_ms=10.0, eager_ms=40.0),
        Replayed(region=slower, replays=10, took_ms=20.0, eager_ms=10.0),
    ]
    found = gain_of(replayed, [measured, slower, fresh, waiting, inside, refused])
    assert found == Gain(made_ms=300.0 - 10.0 + 100.0, foreseen_ms=40.0)


def test_shapes_that_are_new_at_each_call_are_named() -> None:
    shapes = tuple(ShapeCount(shapes=(("past", (1, length)),), calls=1, order=length) for length in range(9))
    settled = KNOWN | {"gain": Gain(), "has_graphs": False}
    found = prospect(**settled | {"regions": (replace(OBSERVED, shapes=shapes),)})
    assert found.settled and found.why is not None and found.why.startswith("graphs for shapes that are new")
    assert prospect(**settled | {"regions": (replace(OBSERVED, shapes=shapes[:4]),)}).why is None
