"""Loops in cells of a real kernel: each cell under `%%grape` against its plain twin, twice, so that regions replay."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_cell_behaviour import ANSI, merged, run_all, without_report

pytestmark = pytest.mark.usefixtures("forked_kernels")

SETUP = """\
import sys
import torch
torch.manual_seed(0)
w = torch.randn(4, 4) * 0.5
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()).requires_grad_(False)
def start():
    global x, h, log
    torch.manual_seed(1)
    x, h, log = torch.randn(2, 4), torch.zeros(2, 4), []
def line():
    return sys._getframe(1).f_lineno
class Half:
    def decode(self, x, steps):
        state = x
        for step in range(steps):
            hidden = torch.tanh(state @ w)
            state = hidden * 0.5 + self.shift(hidden)
            if step == 60:
                raise KeyError(step)
        return state
    def shift(self, x):
        return x * 0.1
half = Half()
def train(x, steps):
    best = None
    try:
        for step in range(steps):
            hidden = torch.tanh(x @ w)
            x = hidden * 0.5 + 0.1
            best = hidden.sum() * 2
            x = x @ w[: 4 if step != 50 else 3]
    except RuntimeError as error:
        return best, x, str(error)
    return best, x
def show():
    for name, value in sorted(globals().items()):
        if not name.startswith("_") and name not in ("In", "Out", "exit", "quit", "open", "start", "show", "sys"):
            print(name, value.tolist() if isinstance(value, torch.Tensor) else value)
    print(torch.rand(1).item())
"""
STEP = """\
    h = torch.tanh(x @ w + h)
    y = net(h) * 0.5
    x = x + y
"""
CELLS = {
    "plain loop": f"for i in range(30):\n{STEP}",
    "effects in between": f"for i in range(30):\n{STEP}    log.append(float(x.sum()))\n    print(i)\n"
    "    z = h * 2 + y\n",
    "break and else": f"for i in range(30):\n{STEP}    if i == 20:\n        break\nelse:\n    print('no')\n",
    "continue and else": f"for i in range(30):\n    if i % 3 == 1:\n        continue\n{STEP}else:\n"
    "    print('yes', i)\n",
    "while": f"n = 0\nwhile n < 30:\n    n += 1\n{STEP}else:\n    print('over')\n",
    "while with a walrus": f"n = 0\nwhile (n := n + 1) < 30:\n{STEP}",
    "while true": f"n = 0\nwhile True:\n    n += 1\n{STEP}    if n > 25: break\n",
    "nested": "for i in range(4):\n    q = h * 2 + 1\n    for j in range(10):\n"
    f"    {STEP.replace(chr(10), chr(10) + '    ')}\n"
    "    print(i, float(q.sum()))\n",
    "an inner loop of constant length": "for i in range(30):\n    for j in range(3):\n"
    "        h = torch.tanh(x @ w + h)\n"
    "    x = x + h * 0.1\n",
    "enumerate and stars": f"for i, (a, *rest) in enumerate([(1, 2, 3)] * 30):\n{STEP}    b, *c = h\n",
    "zip of iterators": f"source = iter(range(40))\nfor i, j in zip(source, range(30)):\n{STEP}print(list(source))\n",
    "a generator that is closed": "def numbers():\n    try:\n        yield from range(40)\n    finally:\n"
    "        print('closed')\n"
    f"for i in numbers():\n{STEP}    if i == 25: break\nprint('after')\n",
    "no grad inside": "for i in range(30):\n    with torch.no_grad():\n        h = torch.tanh(x @ w + h)\n"
    "        y = net(h) * 0.5\n"
    "        log.append(i)\n        x = x + y\n",
    "no grad and autocast around": "with torch.no_grad(), torch.autocast('cpu', torch.bfloat16):\n"
    "    for i in range(30):\n"
    f"    {STEP.replace(chr(10), chr(10) + '    ')}\n",
    "del": f"for i in range(30):\n{STEP}    t = y * 2 + 1\n    del t\n",
    "closures see the name": f"def now():\n    return h * 2\nfor i in range(30):\n{STEP}    later = now() + h\n",
    "lambdas keep the name": f"kept = []\nfor i in range(30):\n{STEP}    kept.append(lambda: h)\n"
    "print(kept[0]() is h); del kept\n",
    "comprehensions": f"for i in range(30):\n{STEP}    parts = [t * 2 for t in (x, h)]\n"
    "    total = sum([p.sum() for p in parts])\n",
    "a counter in the arithmetic": f"for i in range(30):\n{STEP}    x = x * (i + 1) / (i + 2)\n",
    "random numbers": f"for i in range(30):\n{STEP}    x = x + torch.rand(2, 4) * 0.1\n",
    "views and aliases": f"for i in range(30):\n{STEP}    same = x; row = x[0]\n    x[1] = row * 0.5\n"
    "print(same is x)\n",
    "line numbers": f"for i in range(30):\n{STEP}    here = line() + 0\n    z = torch.tanh(x) + here\n",
    "await": f"import asyncio\nfor i in range(30):\n{STEP}    await asyncio.sleep(0)\n",
    "training": "p = torch.nn.Parameter(torch.ones(4, 4)); o = torch.optim.Adam([p], lr=0.1)\nfor i in range(12):\n"
    "    o.zero_grad()\n    loss = (x @ p).tanh().square().mean()\n    loss.backward()\n    o.step()\n"
    "    log.append(loss.item())\n",
    "a method with a loop": "r = half.decode(x, 50) + 1\nr2 = half.decode(x, 40)",
    "a function that catches": "for k in range(3): r = train(x, 80)\nr = None",
    "globals()": f"for i in range(30):\n{STEP}    names = len(globals())\n",
}
RAISES = {
    "unbound": f"for i in range(30):\n{STEP}    v = torch.tanh(x) * missing\n",
    "in the middle of a run": f"for i in range(30):\n{STEP}    first = x * 2\n"
    "    u = x @ w[: 4 if i < 20 else 3]\n    last = x + 1\n",
    "in a function": "def f(x, i):\n    if i > 20:\n        raise ValueError(i)\n    return x * 2\n"
    f"for i in range(30):\n{STEP}    u = f(x, i) + h\n",
    "an interrupt": "def f(x, i):\n    if i > 20:\n        raise KeyboardInterrupt\n    return x * 2\n"
    f"for i in range(30):\n{STEP}    u = f(x, i) + h\n",
    "in the iterator": f"def bad():\n    yield from range(20)\n    raise OSError('gone')\nfor i in bad():\n{STEP}",
    "not iterable": f"for i in 5:\n{STEP}",
    "in a method": "r = half.decode(x, 80)",
    "a condition": f"n = 0\nwhile n < (20 if n < 15 else None):\n    n += 1\n{STEP}",
}
EVERY = CELLS | RAISES


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], list[Any]]:
    def cells(first: str) -> list[str]:
        return [cell for body in EVERY.values() for cell in ["start()", first + body, "show()"] * 2]

    folder = tmp_path_factory.mktemp("outlining")
    plain = run_all(["pass", SETUP, *cells("# plain\n")], folder, allow_errors=True)
    grape = run_all(["%load_ext grape", SETUP, *cells("%%grape\n")], folder, allow_errors=True)
    return [cell.outputs for cell in plain.cells[2:]], [cell.outputs for cell in grape.cells[2:]]


def _streams(outputs: list[Any]) -> Any:
    """Outputs with each stream as a whole; times and addresses differ."""
    streams: dict[str, str] = {}
    rest = []
    for output in outputs:
        if output[0] in ("stdout", "stderr"):
            streams[output[0]] = streams.get(output[0], "") + output[1]
        else:
            rest.append(output)
    text = repr((streams, rest)).replace("# plain", "%%grape").replace("# %%grape", "%%grape")
    return re.sub(r"0x[0-9a-f]+|/\d+\.py|(CPU times|Wall time): .*?\\n", "", ANSI.sub("", text))


@pytest.mark.parametrize("name", EVERY)
def test_a_cell_with_a_loop_is_the_plain_cell(ran: tuple[list[Any], list[Any]], name: str) -> None:
    plain, grape = ran
    first = 6 * list(EVERY).index(name)
    for at in (first, first + 3):
        assert _streams(without_report(grape[at + 1])) == _streams(merged(plain[at + 1]))
        assert _streams(merged(grape[at + 2])) == _streams(merged(plain[at + 2]))
    raised = any(output.output_type == "error" for output in plain[first + 1])
    assert raised == (name in RAISES)


TIMED = {
    name: EVERY[name] for name in ("effects in between", "training", "break and else", "in a function", "in a method")
}


def test_a_loop_below_time_is_the_plain_one_and_replays(tmp_path: Path) -> None:
    """That magic compiles its body under a file name of its own."""

    def outputs(*first: str) -> list[Any]:
        magics = "".join(f"{line}\n" for line in first)
        rounds = [["start()", f"{magics}%%time\n{body}", "show()"] for body in TIMED.values()]
        begin = ["%load_ext grape" if first else "pass", SETUP]
        cells = [*begin, *[cell for each in rounds for cell in each * 2]]
        if first:
            cells += ["%%grape -o one --no-widget\n%%time\n" + TIMED["effects in between"], "one.regions[0]"]
        return [cell.outputs for cell in run_all(cells, tmp_path, allow_errors=True).cells[2:]]

    plain, grape = outputs(), outputs("%%grape --no-widget")
    for at, (mine, theirs) in enumerate(zip(plain, grape, strict=False)):
        shown = _streams(without_report(theirs)) if at % 3 == 1 else _streams(merged(theirs))
        assert _below_time(shown) == _below_time(_streams(merged(mine))), at
    region = merged(grape[-1])[0][2]["text/plain"]
    assert "outcome='replayed'" in region and "file='<timed exec>'" in region, region


def _below_time(shown: str) -> str:
    """The magic stands one line lower below another."""
    shown = re.sub(r" +1 %%grape --no-widget(\\n|\n)", "", shown)
    return re.sub(r"(?m)(line|Line|-+>) ?\d+|In ?\[\d+\]|run_cell_magic.*", "", shown)


def test_regions_of_loops_are_reported_and_undone(tmp_path: Path) -> None:
    loop = CELLS["effects in between"]
    cells = [
        "%load_ext grape",
        SETUP,
        f"%%grape -o one\nstart()\n{loop}",
        f"%%grape -o two\nstart()\n{loop}",
        "[(r.name, r.outcome, r.line, r.reason) for r in two.regions], two.regions[0].replays > 15",
        "%grape status",
        "%grape undo",
        f"%%grape --profile -o three\nstart()\n{loop}",
        "[(r.name, r.outcome) for r in three.regions]",
        "sorted(name for name in globals() if 'loop' in name or 'run' in name or 'grape' in name)",
        f"%%grape -o four\n%%time\n{loop}",
        "len(log), four.regions",
        "%%grape -o five --no-widget\nstart()\nfor i in range(3): print(type(get_ipython().compile).__module__)",
        "type(get_ipython().compile).__module__",
        "%unload_ext grape",
    ]
    outputs = [cell.outputs for cell in run_all(cells, tmp_path).cells]
    assert merged(outputs[4])[0][2]["text/plain"] == "([('loop at line 3, from line 4', 'replayed', 4, None)], True)"
    assert "loop at line 3, from line 4 at In[4], line 4: " in merged(outputs[5])[0][1]
    assert "undone: loop at line 3, from line 4 at In[4], line 4 runs eagerly again" in merged(outputs[6])[0][1]
    assert merged(outputs[8])[0][2]["text/plain"] == "[('loop at line 3, from line 4', 'observed')]"
    assert merged(outputs[9])[0][2]["text/plain"] == "[]"
    assert merged(outputs[11])[0][2]["text/plain"].startswith("(60,")
    assert merged(outputs[12])[0] == ("stdout", "grape.magics.loops\n" * 3)
    assert "grape" not in merged(outputs[13])[0][2]["text/plain"]
