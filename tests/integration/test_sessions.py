"""The engine and `grape.session` without IPython: status, undo, reset, scripts, errors, `grape.graph`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import ran

SCRIPT = """\
import torch
import grape
from grape.errors import UsageError

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8), torch.nn.Tanh()).eval()
call, start = torch.nn.Module.__call__, torch.randn(2, 8)

def step(x):
    return net(x) * 0.5 + x

@torch.no_grad()
def loop():
    x = start
    for _ in range(20):
        x = step(x)
    return x

expected, code = loop(), step.__code__
"""

SCRIPTS = {
    "blocks of one file are counted each by itself": """\
from grape.sessions.process import engine
for _ in range(3):
    with grape.session(profile=True):
        loop()
with grape.session(profile=True):
    loop()
assert sorted(runs.count for runs in engine().runs.values()) == [1, 3]
""",
    "a block is observed, accelerated and reported": """\
with grape.session() as session:
    result = loop()
assert torch.equal(result, expected)
assert grape.last is session.report
(region,) = session.report.to_dict()["regions"]
assert (region["name"], region["outcome"], region["calls"]) == ("step", "replayed", 20), region
assert torch.equal(loop(), expected)
""",
    "what a block left is gone with its last name": """\
import gc, weakref
left = []
def block(fails):
    with grape.session():
        result = loop()
        left.append(weakref.ref(result))
        if fails:
            raise ValueError(result)
gc.collect()
gc.disable()
block(fails=False)
try:
    block(fails=True)
except ValueError:
    pass
assert [one() for one in left] == [None, None], left
""",
    "the names around a block stay, wherever they are": """\
code = "with grape.session():\\n    result = loop()\\nafter = step, result"
apart = {"kept": 1}
exec(code, globals(), apart)
assert apart["kept"] == 1 and torch.equal(apart["after"][1], expected), sorted(apart)
class Body:
    kept = 1
    with grape.session():
        result = loop()
    after = kept
assert Body.after == Body.kept == 1 and torch.equal(Body.result, expected)
def inside(kept):
    with grape.session():
        result = loop()
    return kept, result
assert inside(1)[0] == 1 and torch.equal(inside(1)[1], expected)
""",
    "graphs are numbered, undone and forgotten": """\
from grape.sessions import engine
assert engine().status() == "grape: nothing observed yet; put %%grape on the first line of a slow cell"
assert engine().undo() == "nothing to undo: no graph is applied"
with grape.session():
    loop()
assert "  1 step at " in engine().status(), engine().status()
assert " replayed by 2 graphs, " in engine().status() and ": 20 calls, " in engine().status(), engine().status()
assert engine().undo(1).endswith(" runs eagerly again")
assert step.__code__ is code and torch.nn.Module.__call__ is call
assert "  - step at " in engine().status(), engine().status()
try:
    engine().undo(1)
except UsageError as error:
    assert str(error) == "no applied region 1 (none is applied); see %grape status"
with grape.session():
    assert torch.equal(loop(), expected)
def often(x):
    for _ in range(4):
        x = torch.tanh(x) + 1
    return x
with grape.session():
    for _ in range(60):
        often(expected)
listed = [line.split()[:2] for line in engine().status().splitlines() if line.split()[2] == "at"]
assert listed[:2] == [["1", "step"], ["2", "often"]], engine().status()
assert engine().reset() == "forgot 2 regions and released their graphs"
assert step.__code__ is code and torch.nn.Module.__call__ is call and not step.__dict__
assert grape.last is None
assert torch.equal(loop(), expected)
""",
    "an exception of the block propagates and is reported": """\
try:
    with grape.session():
        loop()
        raise KeyError("mine")
except KeyError as error:
    assert error.args == ("mine",)
assert grape.last.verdict.startswith("stopped by KeyError"), grape.last.verdict
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
assert _get_current_dispatch_mode_stack() == []
""",
    "misuse": """\
def raised(function):
    try:
        function()
    except UsageError as error:
        return str(error)

def nested():
    with grape.session(), grape.session():
        pass

def asking(**settings):
    with grape.session(**settings):
        pass

assert raised(nested).startswith("a Grape session is already open, by %%grape or grape.session; take one of them away")
assert raised(lambda: asking(speed=9)).startswith("unknown setting: 'speed'; settings: engine, profile, ")
assert raised(lambda: asking(engin="regions")) == "unknown setting: 'engin'; did you mean engine?"
assert raised(lambda: asking(engine="region")) == "engine is one of auto, regions, streams, not 'region'"
assert raised(lambda: grape.graph(3)) == "grape.graph takes a function or a module, not int"
with grape.session():
    assert torch.equal(loop(), expected)
""",
    "the report knows when graphs were captured, and of which cell": """\
with grape.session() as session:
    loop()
first = session.report.evidence
assert first.captured_at_ms and list(first.captured_at_ms) == sorted(first.captured_at_ms)
assert 0 < first.captured_at_ms[0] and first.captured_at_ms[-1] < first.wall_ms
with grape.session() as session:
    loop()
second = session.report.evidence
assert session.report.regions[0].replays > 0
assert all(0 < at < second.wall_ms for at in second.captured_at_ms), "those of the first cell would be below 0"
""",
    "profile observes and applies nothing": """\
with grape.session(profile=True) as session:
    assert torch.equal(loop(), expected)
assert [region["replays"] for region in session.report.to_dict()["regions"]] == [0]
assert step.__code__ is code and torch.nn.Module.__call__ is call
""",
    "grape.graph decorates": """\
@grape.graph
def fast(x, *, k=0.5):
    "doc"
    return net(x) * k + x

with torch.no_grad():
    x = start
    for _ in range(20):
        x = fast(x)
assert torch.equal(x, expected)
assert (fast.__name__, fast.__doc__) == ("fast", "doc")
evidence = fast.evidence()
assert (evidence.outcome, evidence.calls) == ("replayed", 20)
fast.release()
assert fast.evidence() is None
with torch.no_grad():
    assert torch.equal(fast(start), step(start))
try:
    fast(torch.ones(2, 9))
except RuntimeError as error:
    import traceback
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    assert not [file for file in files if "/grape/" in file], files
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(name: str, tmp_path: Path) -> None:
    """Each in a process of its own, since the engine is the process's."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + SCRIPTS[name])
    done = ran(str(script), cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
