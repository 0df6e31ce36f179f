"""GR302's fixes: before, after, refused; the same results, also with `break`, errors and random numbers."""

from __future__ import annotations

import linecache
from textwrap import dedent
from typing import Any

import pytest
import torch

from grape.fixing.verification import verify
from grape.rewrite import Declined, Rewritten
from grape.rewrite.registry import fix, moved
from tests.unit.rewrite_cases import finding, outcome, run

SETUP = """
net = torch.nn.Linear(4, 3)
xs = [torch.randn(2, 4) for _ in range(6)]
ys = [torch.randint(0, 3, (2,)) for _ in range(6)]
rows = [{"x": torch.ones(4) * n, "y": n} for n in range(6)]
data = torch.utils.data.TensorDataset(torch.randn(6, 4), torch.arange(6))
device = torch.device("cpu")
def step(x, y):
    return (net(x).sum() * y.sum()).detach()
"""

CASES = [
    (
        "a loader of this cell",
        5,
        """\
        # train
        loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
        total = 0
        for x, y in loader:  # one pass
            x, y = x.to(device), y.to(device)
            total = total + step(x, y)
        """,
        """\
        # train
        import grape
        loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True, pin_memory=torch.cuda.is_available())
        total = 0
        for x, y in grape.prefetch(loader, device):  # one pass
            x, y = x.to(device), y.to(device)
            total = total + step(x, y)
        """,
    ),
    (
        "any iterable, enumerated",
        4,
        """\
        total = 0
        for i, (x, y) in enumerate(zip(xs, ys), start=1):
            total += torch.rand(())
            x = x.to(device)
            y = y.to(device=device, non_blocking=False)
            if i == 4:
                break
            total = total + step(x, y)
        """,
        """\
        import grape
        total = 0
        for i, (x, y) in enumerate(grape.prefetch(zip(xs, ys), device), start=1):
            total += torch.rand(())
            x = x.to(device)
            y = y.to(device=device, non_blocking=False)
            if i == 4:
                break
            total = total + step(x, y)
        """,
    ),
    (
        "a dictionary moved item by item",
        4,
        """\
        loader = torch.utils.data.DataLoader(rows, batch_size=2)
        total = 0
        for batch in loader:
            batch = {k: v.to(device) for k, v in batch.items()}
            total = total + step(**batch)
        """,
        """\
        import grape
        loader = torch.utils.data.DataLoader(rows, batch_size=2, pin_memory=torch.cuda.is_available())
        total = 0
        for batch in grape.prefetch(loader, device):
            batch = {k: v.to(device) for k, v in batch.items()}
            total = total + step(**batch)
        """,
    ),
    (
        "items of a local dictionary",
        4,
        """\
        def epoch(loader, device):
            total = 0
            for batch in loader:
                x = batch["x"].to(device)
                total = total + step(x.float(), batch["y"].to(device))
            return total
        total = epoch(torch.utils.data.DataLoader(rows, batch_size=3), device)
        """,
        """\
        import grape
        def epoch(loader, device):
            total = 0
            for batch in grape.prefetch(loader, device):
                x = batch["x"].to(device)
                total = total + step(x.float(), batch["y"].to(device))
            return total
        total = epoch(torch.utils.data.DataLoader(rows, batch_size=3), device)
        """,
    ),
    (
        "a device of an attribute, a list, a loop that has an else",
        4,
        """\
        model = net; model.device = device
        total = 0
        for batch in data:
            batch = [item.to(model.device) for item in batch]
            total = total + step(batch[0], batch[1])
        else:
            total = total * 2
        """,
        """\
        import grape
        model = net; model.device = device
        total = 0
        for batch in grape.prefetch(data, model.device):
            batch = [item.to(model.device) for item in batch]
            total = total + step(batch[0], batch[1])
        else:
            total = total * 2
        """,
    ),
    (
        "made on the line",
        3,
        """\
        total = 0
        for i in range(3):
            noise = torch.randn(2, 4).to(device)
            total = total + step(noise, ys[0])
        """,
        """\
        total = 0
        for i in range(3):
            noise = torch.randn(2, 4, pin_memory=torch.cuda.is_available()).to(device, non_blocking=True)
            total = total + step(noise, ys[0])
        """,
    ),
    (
        "used on the CPU in between: the loader pins, the copy that is not looked at later does not block",
        4,
        """\
        loader = torch.utils.data.DataLoader(data, batch_size=2)
        total = 0
        for x, y in loader:
            x = x.to(device)
            total = total + step(x, y) + y.tolist()[0]
        """,
        """\
        loader = torch.utils.data.DataLoader(data, batch_size=2, pin_memory=torch.cuda.is_available())
        total = 0
        for x, y in loader:
            x = x.to(device, non_blocking=True)
            total = total + step(x, y) + y.tolist()[0]
        """,
    ),
]


@pytest.mark.parametrize(("line", "before", "after"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_fix(line: int, before: str, after: str) -> None:
    before, after = dedent(before), dedent(after)
    about = finding("GR302", line)
    made = fix(before, about)
    assert isinstance(made, Rewritten), made
    assert made.source == after
    one, other = run(before, SETUP), run(after, SETUP)
    for name in ("total", "x", "y", "i", "batch", "noise"):
        assert outcome(one.get(name)) == outcome(other.get(name)), name
    again = moved(about, before, after)
    assert again is not None and isinstance(fix(after, again), Declined)


@pytest.mark.parametrize("name", ["a loader of this cell", "a dictionary moved item by item", "made on the line"])
def test_fixes_are_verified(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, before, after = next(case for case in CASES if case[0] == name)
    monkeypatch.setitem(linecache.cache, "<setup>", (len(SETUP), None, SETUP.splitlines(keepends=True), "<setup>"))
    space: dict[str, Any] = {"torch": torch}
    exec(compile(SETUP, "<setup>", "exec"), space)
    checked = verify(dedent(before), dedent(after), space)
    assert checked.result == "identical", checked
    other = verify(dedent(before), dedent(after).replace("total + step", "total - step"), space)
    assert other.result == "different", other


def test_nothing_else_of_grape_is_run_again() -> None:
    space: dict[str, Any] = {"torch": torch, "grape": 1}
    assert verify("x = 1", "import grape\nx = 1\ngrape.session()", space).result == "not verified"


REFUSED = [
    (2, "for x in loader:\n    x = x.to(d)", "whether `d` is a device cannot be told"),
    (2, "for x in loader:\n    x = x.to(device, torch.float16)", "the copy does more than go to a device"),
    (1, "x = x.to('cuda')", "`x` is no variable of a loop over a DataLoader"),
    (3, "for x in loader:\n    print(x)\n    x = x.to(device)", "line 2: `x` is used before it is copied"),
    (4, "for x in loader:\n    if n:\n        continue\n    x = x.to(device)", "line 2: the loop may be left before"),
    (2, "for x, y in loader:\n    x = x.to(device)", "line 1: `y` stays on the CPU"),
    (2, "for x, y in loader:\n    x = x.to(device)\n    z = y.to('cuda')", "line 3: `y` is used before"),
    (2, "for x, y in loader:\n    x, y = x.to(device), y.to(other_device)", "line 2: `x` is used before"),
    (2, "for b in loader:\n    x = b['x'].to(device)", "line 2: `b` is used before it is copied"),
    (2, "for device in loader:\n    x = x.to(device)", "`device` changes in the loop"),
    (3, "for x in loader:\n    with torch.cuda.stream(s):\n        x = x.to(device)", "chooses a stream or a device"),
    (2, "for x in loader:\n    x = x.cuda()\n    with torch.cuda.device(1):\n        f(x)", "chooses a stream or"),
    (2, "for x.y in loader:\n    z = z.to(device)", "the loop's variable is no name and no tuple of names"),
    (2, "for x, *r in loader:\n    x = x.to(device)", "the loop's variable is no name and no tuple of names"),
    (2, "for x in grape.prefetch(loader, device):\n    x = x.to(device)", "the loop's batches are prefetched already"),
    (3, "grape = 1\nfor x in loader:\n    x = x.to(device)", "the source has a name `grape` of its own"),
    (2, "def g():\n    global x\n    for x in l:\n        x = x.to(device)", "no `.to(device)` or `.cuda()` stands"),
    (
        4,
        "def g():\n    global x\n    for x in l:\n        x = x.to(device)",
        "a function that may run meanwhile uses `x`",
    ),
    (3, "async def g():\n    async for x in l:\n        x = x.to(device)", "the loop waits for its batches"),
    (1, "for x in loader: x = x.to(device)", "the loop's body stands on its line"),
    (
        3,
        "def f(l):\n    for b in l:\n        x = b.to(device)\n    return b",
        "line 3: `b` is used before it is copied",
    ),
    (3, "def f(l):\n    for b in l:\n        x = b.to(device)\n        g(lambda: b)", "line 3: `b` is used before"),
]


@pytest.mark.parametrize(("line", "source", "why"), REFUSED)
def test_refused(line: int, source: str, why: str) -> None:
    made = fix(source + "\n", finding("GR302", line))
    assert isinstance(made, Declined), made
    assert why in str(made)


def test_a_name_that_a_function_of_another_cell_uses() -> None:
    source = "for x in loader:\n    x = x.to(device)\n"
    made = fix(source, finding("GR302", 2), elsewhere={"x"})
    assert isinstance(made, Declined) and "a function that may run meanwhile uses `x`" in made.why


def test_an_error_in_the_loop_leaves_the_same_names() -> None:
    before = "total = 0\nfor x, y in zip(xs, ys):\n    x, y = x.to(device), y.to(device)\n    total = total + 1\n"
    made = fix(before, finding("GR302", 3))
    assert isinstance(made, Rewritten)
    spaces = []
    for source in (before, made.source):
        space: dict[str, Any] = {"torch": torch}
        torch.manual_seed(0)
        exec(SETUP, space)
        with pytest.raises(ValueError, match="3"):
            exec(f"{source}    if total == 3:\n        raise ValueError(total)\n", space)
        spaces.append({name: outcome(space[name]) for name in ("total", "x", "y")})
    assert spaces[0] == spaces[1]
