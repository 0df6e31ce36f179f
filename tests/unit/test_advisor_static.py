"""What source alone shows: found, near misses, and what code without tensors gives."""

from __future__ import annotations

import ast
import gc
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grape.advisor import advise_sources
from grape.advisor.rules import IN_SOURCE
from grape.advisor.rules.gr1xx import gr101
from grape.advisor.static import sources
from grape.advisor.static.sources import find
from scripts.corpus import load

find_in_sources = partial(sources.find_in_sources, rules=IN_SOURCE)
reads_in_sources = partial(sources.reads_in_sources, host_reads=gr101.in_source)

HEAD = "import torch\nfrom torch import nn\nmodel = nn.Linear(4, 4).eval()\nx = torch.zeros(2, 4)\n"
LOOP = HEAD + "with torch.no_grad():\n    for i in range(9):\n"


def codes(source: str) -> list[tuple[str, int]]:
    return [(one.finding.code, one.finding.line) for one in find_in_sources((("a.py", source),))]


FOUND = {
    "GR101 item": "        y = model(x)\n        n = y.sum().item()\n",
    "GR101 tolist": "        y = model(x)\n        n = y.argmax(-1).tolist()\n",
    "GR101 cpu": "        y = model(x)\n        kept.append(y.detach().cpu())\n",
    "GR101 float": "        y = model(x)\n        n += float(y.mean())\n",
    "GR101 print": "        y = model(x)\n        print('loss', y.mean())\n",
    "GR101 f-string": "        y = model(x)\n        log.write(f'{i} {y.mean():.3f}')\n",
    "GR101 synchronize": "        y = model(x)\n        torch.cuda.synchronize()\n",
    "GR102 if": "        y = model(x)\n        if y.mean() > 0:\n            break\n",
    "GR102 if item": "        y = model(x)\n        if y.mean().item() > 0 and i:\n            break\n",
    "GR102 assert": "        y = model(x)\n        assert torch.isfinite(y).all()\n",
    "GR102 ternary": "        y = model(x)\n        z = 1 if y.any() else 2\n",
    "GR103 mask": "        y = model(x)\n        z = y[y > 0]\n",
    "GR103 nonzero": "        y = model(x)\n        z = torch.nonzero(y)\n",
    "GR103 unique": "        y = model(x)\n        z = y.unique()\n",
    "GR202 cat": "        y = model(x)\n        x = torch.cat([x, y])\n",
    "GR401 tensor": "        y = model(x)\n        z = y * torch.tensor(0.5, device='cuda')\n",
}


@pytest.mark.parametrize("name", list(FOUND))
def test_found_in_a_loop(name: str) -> None:
    assert codes(LOOP + FOUND[name]) == [(name[:5], 8)]


TOLD_LATER = {
    "a branch on a parameter": (
        "def f(a):\n    if a.sum() > 3:  #\n        a = a * 2\n    return a.mean().item()\n",
        [("GR102", 2), ("GR101", 4)],
    ),
    "a loop on a parameter": (
        "def f(a):\n    while a.max() > 3:  #\n        a = a / 2\n    return a.max().tolist()\n",
        [("GR102", 2), ("GR101", 4)],
    ),
    "an assert on what came from elsewhere": (
        "def f(path):\n    a = read(path)\n    assert a.isfinite().all()\n    return a.abs().max().item()\n",
        [("GR102", 3), ("GR101", 4)],
    ),
    "a list that is read decides": (
        "def f(a):\n    if a.softmax(-1).tolist()[0] > 3:\n        return 1\n    return 2\n",
        [("GR102", 2)],
    ),
    "a list of what is not known": ("def f(a):\n    return a.ids.tolist()\n", [("GR101", 2)]),
}


@pytest.mark.parametrize("name", list(TOLD_LATER))
def test_later_lines_tell(name: str) -> None:
    body, expected = TOLD_LATER[name]
    calls = "for v in values:\n    f(v)\n"
    assert sorted(codes("import torch\n" + body + calls)) == sorted((code, line + 1) for code, line in expected)
    assert codes(body + calls) == [], "without torch these are plain Python"


TELLS_NOTHING = {
    "an array of NumPy": "import numpy as np\ndef f(a):\n    if a.sum() > 3:\n        return a.mean().item()\n",
    "a list": "import numpy as np\ndef f(a):\n    return a.tolist()\n",
    "a frame": "import pandas\ndef f(a):\n    while a.max() > 3:\n        a = a.max().tolist()\n    return a\n",
    "an array of Python": "from array import array\ndef f(a):\n    return a.tolist()\n",
    "a part of something": "def f(a):\n    if a > 3:\n        return 1\n    return len(a.loss.shape)\n",
    "a metric": "def f(a):\n    if a.done > 3:\n        return 1\n    return str(a.compute())\n",
    "a number": "def f(a):\n    if a + 1 > 3:\n        return 1\n    return int(a)\n",
    "items of a dict": "def f(a):\n    if a:\n        return [k for k, _ in a.items()]\n",
}


@pytest.mark.parametrize("name", list(TELLS_NOTHING))
def test_plain_python_tells_nothing(name: str) -> None:
    assert codes("import torch\n" + TELLS_NOTHING[name] + "for v in values:\n    f(v)\n") == []


LENGTHS = {
    "for n in list(range(3, 40)) * 2:\n    y = model(x[:, :n])\n": [("GR201", 7)],
    "for n in 3 * [4, 5, 6]:\n    y = model(x[:n])\n": [("GR201", 7)],
    "for n in [4, 5, 4, 5]:\n    z = x[n:]\n    y = model(z)\n": [("GR201", 8)],
    "for _ in range(9):\n    for n in range(3, 40):\n        y = model(torch.randn(n, 4))\n": [("GR201", 8)],
    "def f(a):\n    return a * 2\nfor n in sorted([8, 4]) * 2:\n    y = f(torch.zeros((n, 4)))\n": [("GR201", 9)],
    "for n in range(3, 40):\n    y = model(x[:, :n])\n": [],  # each comes once
    "for n in [4, 4, 4]:\n    y = model(x[:n])\n": [],
    "for n in [4] * 9:\n    y = model(x[:n])\n": [],
    "for n in list(range(40)) * 2:\n    y = model(x[n])\n": [],  # a row, always as long
    "for n in list(range(40)) * 2:\n    y = model(x[n:n + 4])\n": [],  # a window
    "for n in list(range(40)) * 2:\n    print(names[:n])\n    y = model(x)\n": [],
    "for n in list(range(40)) * 2:\n    y = model(x)\n    z = y[:n]\n": [],
    "for n in list(range(40)) * 2:\n    names = sort(names[:n])\n": [],
    "for _ in range(1):\n    for n in range(3, 40):\n        y = model(x[:n])\n": [],
}


@pytest.mark.parametrize("loop", list(LENGTHS))
def test_lengths_that_come_again(loop: str) -> None:
    found = codes(HEAD + "torch.set_grad_enabled(False)\n" + loop)
    assert [one for one in found if one[0] == "GR201"] == LENGTHS[loop]
    assert codes(loop) == []


NOT_FOUND = {
    "after the loop": "        y = model(x)\n    n = y.sum().item()\n",
    "every n-th iteration": "        y = model(x)\n        if i % 10 == 0:\n            print(y.mean())\n",
    "a shape": "        y = model(x)\n        if y.shape[0] > 2 or y.dim() == 3:\n            break\n",
    "is None": "        y = model(x)\n        if y is None:\n            break\n",
    "a Python number": "        y = model(x)\n        print(i, y.shape)\n",
    "where with three arguments": "        y = model(x)\n        z = torch.where(y > 0, y, 0)\n",
    "an index tensor": "        y = model(x)\n        z = y[y.topk(2).indices]\n",
    "a slice": "        y = model(x)\n        z = y[:, :2]\n",
    "cat of others": "        y = model(x)\n        z = torch.cat([x, y])\n",
    "a new window": "        y = model(x)\n        x = torch.cat([x[1:], y])\n",
    "a constant on the CPU": "        y = model(x)\n        z = torch.tensor([1, 2])\n",
    "a dtype": "        y = model(x)\n        z = y.to(torch.float16)\n",
    "a list's item": "        y = model(x)\n        z = [1, 2]\n        n = str(z)\n",
    "in an except": "        try:\n            y = model(x)\n        except ValueError:\n            print(x)\n",
    "a function that is defined there": "        def f(y):\n            return y.item()\n",
}


@pytest.mark.parametrize("name", list(NOT_FOUND))
def test_near_misses(name: str) -> None:
    assert codes(LOOP + NOT_FOUND[name]) == []


STOP = "    if i > 3:\n        break\n"
QUIET = {
    "no torch": "total = 0\nfor i in values:\n    total += i.item()\n    print(i)\n" + STOP,
    "numpy": "import numpy as np\nfor i in np.ones((3, 3)):\n    print(i.tolist())\n" + STOP,
    "pandas": "import pandas as pd\nfor _, i in pd.DataFrame().iterrows():\n    rows = i[i > 0].tolist()\n" + STOP,
    "torch is imported, and never used": "import torch\nfor i in range(9):\n    print(i)\n" + STOP,
    "lists beside torch": "import torch\nnames = ['a']\nfor i in names:\n    print(i)\n    names.append(i)\n" + STOP,
}


@pytest.mark.parametrize("name", list(QUIET))
def test_quiet_about_code_that_never_touches_tensors(name: str) -> None:
    assert advise_sources([("a.py", QUIET[name])]) == ()


def test_cells_share_their_names_and_keep_their_lines() -> None:
    cells = [
        ("cell 1", "%matplotlib inline\nimport torch\nmodel = torch.nn.Linear(4, 4)"),
        ("cell 2", "!pip list\nthis is no Python"),
        ("cell 3", "%%grape\nx = torch.zeros(4)\nfor _ in range(9):\n    x = model(x)\n    print(x.sum())"),
    ]
    (finding,) = advise_sources(cells)
    assert (finding.code, str(finding.at)) == ("GR101", "cell 3, line 5")
    assert finding.message == "printing `x.sum()` makes the CPU wait for the GPU"
    assert (finding.severity, finding.predicted_ms_per_call) == ("hint", None)


def test_a_function_that_is_called_in_a_loop_is_hot() -> None:
    body = "def f(x):\n    return x.sum().item()\n"
    assert codes(HEAD + body + "f(x)\n") == []
    assert codes(HEAD + body + "for _ in range(9):\n    f(x)\n") == [("GR101", 6)]
    assert codes(HEAD + body + "def g():\n    return f(x)\nfor _ in range(9):\n    g()\n") == [("GR101", 6)]


def test_a_cache_that_a_function_extends_and_returns_grows() -> None:
    loop = "for _ in range(9):\n    y = f(x, y)\n"
    grows = "def f(k, past):\n    past = torch.cat([past, k])\n    return past\ny = x\n"
    assert codes(HEAD + grows + loop) == [("GR202", 6)]
    padded = "def f(k, past):\n    past = torch.cat([past, k])\n    return past.sum(0)\ny = x\n"
    assert codes(HEAD + padded + loop) == []


def test_braces_in_the_code_are_code() -> None:
    source = LOOP + "        y = model(x)\n        print(f'{y.sum():>{8}}', {'a': 1})\n"
    assert codes(source) == [("GR101", 8)]
    source = LOOP + "        y = {0: model}[0](x, {})\n        n = model(x, **{'a': {}}).sum().item()\n"
    assert codes(source) == [("GR101", 8)]


@pytest.mark.parametrize("terms", [100, 300, 900, 5000])
def test_code_nested_too_deeply_is_passed_over(terms: int) -> None:
    deep = "import torch\nx = torch.zeros(3)\nfor i in range(9):\n    y = x" + " + x" * terms + "\n    print(y)\n"
    gc.collect()
    gc.disable()  # what other tests left must not be collected where there is no room for a call
    try:
        found = {placed.finding.code for placed in find_in_sources((("a.py", deep),))}
    finally:
        gc.enable()
    assert found == {"GR101"} if terms == 100 else found <= {"GR101"}


def test_gradients_that_nobody_uses() -> None:
    loop = "for _ in range(9):\n    y = model(x)\n"
    assert codes(HEAD + loop) == [("GR405", 6)]
    assert codes(HEAD + loop + "    y.sum().backward()\n") == []
    assert codes(HEAD + "model.requires_grad_(False)\n" + loop) == []
    assert codes(HEAD + "@torch.no_grad()\ndef f():\n    " + loop.replace("\n    ", "\n        ") + "f()\n") == []


def test_corpus() -> None:
    """A code that is found somewhere in a cell is right where the cell is labelled with it."""
    counts: Counter[str] = Counter()
    wrong = []
    for cell in load():
        found = {f.code for f in advise_sources([("In[1]", cell.setup), ("In[2]", cell.source)])}
        counts["right"] += len(found & cell.codes)
        counts["wrong"] += len(found - cell.codes)
        wrong += [(cell.name, code) for code in found - cell.codes]
    assert counts["right"] >= 30
    assert counts["right"] / (counts["right"] + counts["wrong"]) >= 0.95, wrong


@given(st.sampled_from([cell.source for cell in load()]), st.sampled_from([cell.source for cell in load()]))
def test_any_two_cells_can_be_read_together(one: str, other: str) -> None:
    alone = {(p.finding.code, p.finding.line) for p in find_in_sources((("a", "import torch\n" + one),))}
    both = find_in_sources((("a", "import torch\n" + one), ("b", other)))
    lines = {"a": one.count("\n") + 1, "b": other.count("\n")}
    assert all(1 <= p.finding.line <= p.finding.end_line <= lines[p.file] + 1 for p in both)
    assert all(isinstance(code, str) for code, _ in alone)


def test_a_cell_that_runs_again_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has another name, and maybe other options."""
    body = "\n" + LOOP + FOUND["GR101 item"] + "# read once\n"
    read: list[tuple[str, ...]] = []
    found = sources._found
    monkeypatch.setattr(sources, "_found", lambda texts, *, rules: (read.append(texts), found(texts, rules=rules))[1])
    first, again = (find_in_sources(((f"In[{n}]", f"%%grape --json {n}" + body),)) for n in (3, 4))
    assert len(read) == 1 and first
    assert [(one.file, one.finding) for one in again] == [("In[4]", one.finding) for one in first]


def test_reading_changes_nothing() -> None:
    tree = ast.parse(LOOP + FOUND["GR101 item"])
    before = ast.dump(tree)
    assert find(tree, IN_SOURCE) == find(tree, IN_SOURCE)
    assert ast.dump(tree) == before


def test_the_syntax_alone_tells_what_reads_there_cannot_be() -> None:
    """Of the corpus and the cases above: no read is found whose kind the syntax rules out."""
    texts = [HEAD + case if case.startswith("with") else LOOP + case for case in FOUND.values()]
    texts += [path.read_text() for path in (Path(__file__).parents[1] / "data" / "cells").glob("*.py")]
    kinds = Counter[str]()
    for source in texts:
        found = {one.finding.kind for one in find_in_sources((("a.py", source),)) if one.finding.code == "GR101"}
        kinds.update(found)
        assert found - {""} <= gr101.reads_by_syntax(source), source
    assert {"print", "tolist", "cpu"} <= set(kinds)
    assert not gr101.reads_by_syntax(HEAD)
    assert not gr101.reads_by_syntax("not python !")


def test_reads_are_looked_for_once_in_the_same_cells_and_not_in_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[str, ...]] = []
    found = sources._found
    monkeypatch.setattr(sources, "_found", lambda texts, **how: looked.append(texts) or found(texts, **how))
    monkeypatch.setattr(sources, "_READS", {})
    made = ("In[1]", "import torch\nxs = [torch.ones(3) for _ in range(4)]\n")
    loop = "for x in xs:\n    print(x)\n"
    first = reads_in_sources([made, ("In[2]", f"%%grape\n{loop}")], most_lines=10)
    assert [(one.file, one.finding.line, one.finding.code) for one in first] == [("In[2]", 3, "GR101")]
    again = [made, ("In[2]", f"# %%grape\n{loop}"), ("In[3]", f"%%grape --json r.json\n{loop}")]
    second = reads_in_sources(again, most_lines=0)
    assert [(one.file, one.finding.line) for one in second] == [("In[3]", 3)]
    assert len(looked) == 1
    assert reads_in_sources([("In[1]", made[1] + loop)], most_lines=3) == ()
    assert len(looked) == 1
