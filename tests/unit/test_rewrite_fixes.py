"""Each fix: before, after, and the same results from both. A second fix of the result changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any

import pytest
import torch

from grape.rewrite import Declined, Rewritten
from grape.rewrite.registry import fix, moved
from tests.unit.rewrite_cases import finding, outcome, run

MODEL = """
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
def f(x):
    return net(x)
xs = [torch.randn(n % 3 + 1, 4) for n in range(7)]
ys = [torch.randint(0, 3, (n % 3 + 1,)) for n in range(7)]
device = "cpu"
"""


@dataclass(frozen=True)
class Case:
    name: str
    code: str
    line: int
    before: str
    after: str
    results: tuple[str, ...]
    setup: str = MODEL
    region: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


SQUARE = (((5, 3), (5, 3), (5, 3)),)

CASES = [
    Case(
        "append",
        "GR101",
        5,
        """\
        losses = []
        # one pass
        for x in xs:
            loss = f(x).sum()   # scalar
            losses.append(loss.item())  # kept
        mean = sum(losses) / len(losses)
        """,
        """\
        losses = []
        # one pass
        for x in xs:
            loss = f(x).sum()   # scalar
            losses.append(loss.detach().clone())  # kept
        losses[:] = [value.item() for value in losses]
        mean = sum(losses) / len(losses)
        """,
        ("losses", "mean"),
    ),
    Case(
        "a mean that is made a float first",
        "GR101",
        3,
        """\
        acc = 0
        for x in xs:
            acc += (f(x) > 0).float().mean().item()
        """,
        """\
        acc = 0
        acc_parts = []
        for x in xs:
            acc_parts.append((f(x) > 0).float().mean().detach().clone())
        for part in acc_parts:
            acc += part.item()
        """,
        ("acc",),
    ),
    Case(
        "append below a mode of torch",
        "GR101",
        5,
        """\
        losses = []
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            offset = 1.0
            for x in xs:
                losses.append((f(x).sum() + offset).item())
            last = losses[-1]
        """,
        """\
        losses = []
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            offset = 1.0
            for x in xs:
                losses.append((f(x).sum() + offset).detach().clone())
            losses[:] = [value.item() for value in losses]
            last = losses[-1]
        """,
        ("losses", "last"),
    ),
    Case(
        "append what is changed in place afterwards",
        "GR101",
        5,
        """\
        seen = []
        state = torch.zeros(())
        for x in xs:
            state += x.sum()
            seen.append(float(state))
        """,
        """\
        seen = []
        state = torch.zeros(())
        for x in xs:
            state += x.sum()
            seen.append(state.detach().clone())
        seen[:] = [float(value) for value in seen]
        """,
        ("seen", "state"),
    ),
    Case(
        "append below an epoch loop",
        "GR101",
        5,
        """\
        for epoch in range(2):
            losses = list()
            for x in xs:
                if x.shape[0] > 1:
                    losses.append(f(x).sum().detach().cpu().item())
            print(len(losses), sum(losses))
        """,
        """\
        for epoch in range(2):
            losses = list()
            for x in xs:
                if x.shape[0] > 1:
                    losses.append(f(x).sum().detach().clone().item())
            losses[:] = [value.item() for value in losses]
            print(len(losses), sum(losses))
        """.replace(".clone().item()", ".clone()"),
        ("losses",),
    ),
    Case(
        "append to an entry of a dictionary, inside a function",
        "GR101",
        5,
        """\
        def evaluate(batches):
            history = {"sum": [], "rows": []}
            for x in batches:
                history["rows"].append(len(x))
                history["sum"].append((f(x) * 2).tolist())
            return history
        history = evaluate(xs)
        """,
        """\
        def evaluate(batches):
            history = {"sum": [], "rows": []}
            for x in batches:
                history["rows"].append(len(x))
                history["sum"].append((f(x) * 2).detach().clone())
            history["sum"][:] = [value.tolist() for value in history["sum"]]
            return history
        history = evaluate(xs)
        """,
        ("history",),
    ),
    Case(
        "sum",
        "GR101",
        4,
        """\
        correct, total = 0, 0.0
        # all batches
        for x, y in zip(xs, ys):
            correct += (f(x).argmax(-1) == y).sum().item()
            total += 1
        accuracy = correct / total
        """,
        """\
        correct, total = 0, 0.0
        # all batches
        correct_parts = []
        for x, y in zip(xs, ys):
            correct_parts.append((f(x).argmax(-1) == y).sum().detach().clone())
            total += 1
        for part in correct_parts:
            correct += part.item()
        accuracy = correct / total
        """,
        ("correct", "accuracy"),
    ),
    Case(
        "weighted sum, in the order in which it was added",
        "GR101",
        3,
        """\
        total = 0.0
        for x in xs:
            total += f(x).mean().item() * x.size(0) / 3
        """,
        """\
        total = 0.0
        total_parts = []
        for x in xs:
            total_parts.append((f(x).mean().detach().clone(), x.size(0)))
        for part, factor in total_parts:
            total += part.item() * factor / 3
        """,
        ("total",),
    ),
    Case(
        "list comprehension",
        "GR101",
        1,
        "sums = [f(x).sum().item() for x in xs if len(x) > 1]\n",
        "sums = [value.item() for value in [f(x).sum().detach().clone() for x in xs if len(x) > 1]]\n",
        ("sums",),
    ),
    Case(
        "sum of a generator",
        "GR101",
        2,
        "# mean\nloss = sum(f(x).sum().item() for x in xs) / len(xs)\n",
        "# mean\nloss = sum(value.item() for value in [f(x).sum().detach().clone() for x in xs]) / len(xs)\n",
        ("loss",),
    ),
    Case(
        "a branch of a function",
        "GR102",
        2,
        """\
        def clipped(x):
            if x.sum() > 0:
                return x * 2
            return x
        ys = [clipped(x) for x in xs]
        """,
        """\
        from grape import flow as _flow
        def clipped(x):
            def _then_2():
                return x * 2
            def _else_2():
                return x
            return _flow.branch(x.sum() > 0, _then_2, _else_2)
        ys = [clipped(x) for x in xs]
        """,
        ("ys",),
        region="clipped",
    ),
    Case(
        "write a number where a comparison of the tensor holds",
        "GR103",
        2,
        """\
        x = xs[1]
        x[~(x > 0.5) & x.isfinite()] = -1.5  # clip
        """,
        """\
        x = xs[1]
        x.masked_fill_(~(x > 0.5) & x.isfinite(), -1.5)  # clip
        """,
        ("x",),
    ),
    Case(
        "write a number into integers, truncated as before",
        "GR103",
        2,
        "x = torch.arange(6)\nx[x > 2] = 0.5\n",
        "x = torch.arange(6)\nx.masked_fill_(x > 2, 0.5)\n",
        ("x",),
    ),
    Case(
        "write a number where a mask of the same shape holds",
        "GR103",
        1,
        "x[mask] = float('-inf')\n",
        "x.masked_fill_(mask, float('-inf'))\n",
        ("x",),
        "x = torch.randn(5, 3)\nmask = torch.rand(5, 3) > 0.5\n",
        evidence={"operand_shapes": SQUARE},
    ),
    Case(
        "write a number that the dtype holds",
        "GR103",
        1,
        "x[x < 0] = -1e9\n",
        "x.masked_fill_(x < 0, -1e9)\n",
        ("x",),
        "x = torch.randn(5, 3, dtype=torch.float64)\n",
        evidence={"operand_dtypes": ("float32", "float64")},
    ),
    Case(
        "write another tensor",
        "GR103",
        2,
        "for _ in range(2):\n    x[mask] = y[mask]\n",
        "import torch\nfor _ in range(2):\n    x.copy_(torch.where(mask, y, x))\n",
        ("x",),
        "x = torch.randn(5, 3)\ny = torch.full((5, 3), float('nan'))\nmask = torch.rand(5, 3) > 0.5\n",
        evidence={"operand_shapes": SQUARE},
    ),
    Case(
        "collect, then concatenate once",
        "GR202",
        4,
        """\
        out = torch.zeros(0, 3, dtype=torch.float64)

        for x in xs:
            out = torch.cat([out, f(x)], dim=0)
        """,
        """\
        out = torch.zeros(0, 3, dtype=torch.float64)

        out_parts = [out]
        for x in xs:
            out_parts.append(f(x).clone())
        out = torch.cat(out_parts, dim=0)
        """,
        ("out",),
    ),
    Case(
        "a constant in an expression",
        "GR401",
        4,
        """\
        ys = []
        # scale
        for x in xs:
            ys.append(x * torch.tensor([0.5, 2, 1, 3], device=device))
        """,
        """\
        ys = []
        # scale
        constant = torch.tensor([0.5, 2, 1, 3], device=device)
        for x in xs:
            ys.append(x * constant)
        """,
        ("ys",),
    ),
    Case(
        "a constant with a name",
        "GR401",
        4,
        """\
        ys = []
        for x in xs:
            # a floor
            low = torch.tensor(0.0).to(device)
            ys.append(torch.maximum(x, low))
        """,
        """\
        ys = []
        # a floor
        low = torch.tensor(0.0).to(device)
        for x in xs:
            ys.append(torch.maximum(x, low))
        """,
        ("ys", "low"),
    ),
    Case(
        "a constant of a function",
        "GR401",
        3,
        """\
        # relu
        def g(x):
            return torch.where(x > 0, x, torch.tensor(0.0, device="cpu"))
        ys = [g(x) for x in xs]
        """,
        """\
        # relu
        CONSTANT = torch.tensor(0.0, device="cpu")
        def g(x):
            return torch.where(x > 0, x, CONSTANT)
        ys = [g(x) for x in xs]
        """,
        ("ys",),
    ),
    Case(
        "a counter",
        "GR403",
        1,
        """\
        def step(x, i):
            return torch.tanh(x) + x * i
        x = xs[1]
        n = 20
        for i in range(n):
            x = step(x, i)
        """,
        """\
        def step(x, i):
            return torch.tanh(x) + x * i
        x = xs[1]
        n = 20
        counts = torch.arange(n, device=x.device)
        for i in range(n):
            x = step(x, counts[i])
        """,
        ("x", "i"),
        region="step",
    ),
    Case(
        "a counter that a stream met",
        "GR403",
        2,
        """\
        def step(x, i):
            return torch.tanh(x) + x * i
        x = xs[1]
        for i in range(20):
            x = step(x, i)
        """,
        """\
        def step(x, i):
            return torch.tanh(x) + x * i
        x = xs[1]
        counts = torch.arange(20, device=x.device)
        for i in range(20):
            x = step(x, counts[i])
        """,
        ("x", "i"),
    ),
    Case(
        "no gradients at the top of a cell",
        "GR405",
        4,
        """\
        outs = []
        # evaluate
        for x in xs:
            outs.append(net(x))
        """,
        """\
        import torch
        outs = []
        # evaluate
        with torch.no_grad():
            for x in xs:
                outs.append(net(x))
        """,
        ("outs",),
        region="Sequential (net)",
        evidence={"needs_grad": True},
    ),
    Case(
        "inference mode where nothing gets out",
        "GR405",
        4,
        '''\
        def score(batches):
            total = torch.zeros(3)
            for x in batches:
                total = total + net(x).sum(0)
                text = """
          kept"""
            return total.tolist()
        result = score(xs)
        ''',
        '''\
        def score(batches):
            total = torch.zeros(3)
            with torch.inference_mode():
                for x in batches:
                    total = total + net(x).sum(0)
                    text = """
          kept"""
            return total.tolist()
        result = score(xs)
        ''',
        ("result",),
        region="Sequential (net)",
        evidence={"needs_grad": True},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code} {case.name}")
def test_fix(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = dedent(case.before), dedent(case.after)
    about = finding(case.code, case.line, region=case.region, **case.evidence)
    made = fix(before, about)
    assert isinstance(made, Rewritten), made
    assert made.source == after
    assert made == fix(before, about), "a fix is a function of source and finding"
    there = moved(about, before, after)
    assert there is None or isinstance(fix(after, there), Declined), "a second fix changes something"

    old = run(before, case.setup)
    printed = capsys.readouterr().out
    new = run(after, case.setup)
    assert capsys.readouterr().out == printed
    assert {n: outcome(old[n]) for n in case.results} == {n: outcome(new[n]) for n in case.results}


GENERATE = "out = model.generate(**inputs, max_new_tokens=12, do_sample=False)  # greedy\n"
LIBRARY = "transformers/cache_utils.py, line 3"


def test_generate_gets_a_static_cache() -> None:
    made = fix(GENERATE, finding("GR202", 1, in_library=LIBRARY))
    assert isinstance(made, Rewritten)
    assert made.source == GENERATE.replace("=False)", '=False, cache_implementation="static")')
    assert fix(made.source, finding("GR202", 1, in_library=LIBRARY)) == Declined(
        why="the call chooses its cache itself: `cache_implementation`", line=1
    )


def test_generate_gives_the_same_tokens_with_a_static_cache() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=32, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).eval()
    inputs = {"input_ids": torch.randint(0, 50, (2, 4)), "attention_mask": torch.ones(2, 4, dtype=torch.long)}
    made = fix(GENERATE, finding("GR202", 1, in_library=LIBRARY))
    assert isinstance(made, Rewritten)
    tokens = []
    for source in (GENERATE, made.source):
        space = {"model": model, "inputs": inputs}
        exec(source, space)
        tokens.append(space["out"])
    assert tokens[0].shape == (2, 16)
    assert outcome(tokens[0]) == outcome(tokens[1])


STEP = "def step(x, i):\n    return "

REFUSED = [
    ("GR101", 2, "for x in xs:\n    print(x.item())", "what is shown at each step would appear only after the loop"),
    ("GR101", 2, "for x in xs:\n    print(f'{x.item():.3f}')", "shown at each step would appear only after the loop"),
    ("GR101", 2, "for x in xs:\n    log(x.item())", "`log` takes the value at each step"),
    ("GR101", 2, "a = []\nfor x in xs: a.append(x.item())", "other code stands on the line"),
    ("GR101", 3, "a = []\nfor x in xs:\n    y = f(x); a.append(y.item())", "other code stands on the line"),
    ("GR101", 2, "for x in xs:\n    y = x.item()", "what the loop goes on with depends on the value"),
    ("GR101", 3, "a = []\nfor x in xs:\n    a.append(x.cpu())", "would hold it in GPU memory"),
    ("GR101", 2, "for x in xs:\n    torch.cuda.synchronize()", "a copy that does not block may rely on the"),
    ("GR101", 1, "y = x.item()", "the read is in no loop of this function"),
    ("GR101", 3, "a = []\nfor x in xs:\n    a.append(x.item() + 1)", "something is computed from the value"),
    ("GR101", 3, "a = []\nfor x in xs:\n    a.append(x.item()); b.append(y.item())", "several host reads"),
    (
        "GR101",
        4,
        "a = []\nfor x in xs:\n    if a and a[-1] < 1: break\n    a.append(x.item())",
        "line 3: `a` is used before",
    ),
    ("GR101", 2, "for x in xs:\n    a.append(x.item())", "`a` is made elsewhere"),
    (
        "GR101",
        4,
        "a = []\nwith lock:\n    for x in xs:\n        a.append(x.item())",
        "or in another block than the loop",
    ),
    ("GR101", 4, "a = []\nif xs:\n    for x in xs:\n        a.append(x.item())", "or in another block than the loop"),
    (
        "GR101",
        5,
        "a = []\nwith torch.no_grad():\n    a.append(0.0)\n    for x in xs:\n        a.append(x.item())",
        "line 3: `a` is used before",
    ),
    ("GR101", 1, "a[:] = [x.item() for x in a]", "the comprehension does nothing but read"),
    ("GR101", 3, "a = [1.0]\nfor x in xs:\n    a.append(x.item())", "`a` is not made as an empty list"),
    ("GR101", 4, "a = []\na.append(0.0)\nfor x in xs:\n    a.append(x.item())", "line 2: `a` is used before"),
    (
        "GR101",
        5,
        "def g():\n    return len(a)\na = []\nfor x in xs:\n    a.append(x.item())",
        "a function that may",
    ),
    (
        "GR101",
        4,
        "try:\n    a = []\n    for x in xs:\n        a.append(x.item())\nfinally:\n    print(a)",
        "an exception of the loop may be caught",
    ),
    ("GR101", 4, "a = []\nfor x in xs:\n    yield_ = await x\n    a.append(x.item())", "line 3: the loop is suspended"),
    (
        "GR101",
        4,
        "a = []\nfor x in xs:\n    %matplotlib inline\n    a.append(x.item())",
        "a magic or shell",
    ),
    ("GR101", 4, "a = []\nfor x in xs:\n    exec(code)\n    a.append(x.item())", "what `exec` does cannot be known"),
    ("GR101", 3, "t = 0\nfor x in xs:\n    t += x.item() * w", "`w` may change before the loop ends"),
    ("GR101", 4, "t = 0\nfor x in xs:\n    print(t)\n    t += x.item()", "`t` is used in the loop"),
    ("GR101", 3, "a = []\nfor x in xs:\n    a.append(np.mean(x.cpu().numpy()).item())", "computed on the CPU"),
    ("GR101", 4, "def g():\n    global t\n    for x in xs:\n        t += x.item()", "`t` is shared between functions"),
    ("GR101", 3, "a = []\nfor x in xs:\n    a.append(x.item())", "the loop does nothing but read"),
    (
        "GR101",
        4,
        "a = []\nfor x in xs:\n    try:\n        a.append(x.item())\n    except ValueError:\n        n += 1",
        "line 3: an exception of the loop may be caught around it",
    ),
    ("GR101", 3, "a = []\nasync for x in xs:\n    a.append(g(x).item())", "line 2: the loop is suspended"),
    ("GR401", 2, "for x in xs:\n    y = x * torch.tensor(values)", "what it is made from is not written beside it"),
    ("GR401", 2, "for x in xs:\n    y = x * torch.tensor(cfg.k)", "what it is made from is not written beside it"),
    ("GR401", 2, "for x in xs:\n    y = y + [torch.tensor(0.0)]", "who gets the tensor might write to it"),
    ("GR101", 1, "ok = any(x.item() for x in xs)", "may stop before the last one"),
    ("GR102", 2, "for x in xs:\n    if x.sum() > 0: break", "it is outside of every region"),
    ("GR103", 1, "y = x[x > 0].mean()", "a dense read would add in another order"),
    ("GR103", 1, "x[x < 0] = -1e9", "`masked_fill_` takes no number that the dtype may not hold"),
    ("GR103", 1, "x[mask] = 0", "mask and tensor were not seen to have the same shape"),
    ("GR103", 1, "x[y > 0] = 0", "mask and tensor were not seen to have the same shape"),
    ("GR103", 1, "x[x > 0] = y[x > 0]", "the tensors were not seen to have the same shape"),
    ("GR103", 1, "x[x > 0] = y", "neither a number nor another tensor at the same mask"),
    ("GR103", 1, "x[x > 0, 1] = 0", "the index is more than one mask"),
    ("GR103", 1, "x[x > 0] += 1", "write it as two steps"),
    ("GR103", 1, "f()[x > 0] = 1", "evaluating the tensor or the mask may do something"),
    ("GR202", 1, "model.generate(x, past_key_values=c)", "the call chooses its cache itself: `past_key_values`"),
    ("GR202", 1, "model.generate(x, **settings)", "`**settings` may choose a cache"),
    ("GR202", 1, "y = k", "the state is made elsewhere"),
    ("GR202", 3, "for i in r:\n    y = f(k)\n    k = torch.cat([k, y], 1)", "line 2: the loop reads `k`"),
    ("GR202", 2, "for i in r:\n    k = torch.cat([y, k])", "`k` is not extended at its end"),
    ("GR202", 1, "k = torch.cat([k, y])", "the concatenation is in no loop of this function"),
    ("GR401", 2, "for x in xs:\n    y = g(torch.tensor(0.0, device='cuda'))", "who gets the tensor might write to it"),
    (
        "GR401",
        2,
        "for x in xs:\n    z = torch.tensor(x.shape[0])\n    z += 1",
        "what it is made from changes",
    ),
    ("GR401", 2, "for x in xs:\n    z = torch.tensor(0.0)\n    z += x", "line 3: `z` may be written"),
    ("GR401", 2, "for x in xs:\n    z = torch.tensor(0.0)\n    out.append(z)", "line 3: `z` may be written"),
    ("GR401", 3, "for x in xs:\n    if x:\n        z = torch.tensor(0.0)", "the constant is made under a condition"),
    (
        "GR401",
        3,
        "for x in xs:\n    with torch.device('cuda'):\n        y = x + torch.tensor(0.0)",
        "a block around it chooses the device",
    ),
    ("GR401", 2, "def f(x):\n    return x + torch.tensor(0.0, device=x.device)", "known only inside `f`"),
    ("GR401", 1, "y = x + 1", "no tensor is made from a literal on the line"),
    ("GR404", 2, "def step(x):\n    self.calls += 1\n    return x", "`self.calls` is written for whoever calls `step`"),
    ("GR404", 1, "y = step(x)", "what the call changes is not written in this source"),
    ("GR406", 1, "y = step(x)", "there is no rewrite for GR406"),
]


@pytest.mark.parametrize(("code", "line", "source", "why"), REFUSED)
def test_refused(code: str, line: int, source: str, why: str) -> None:
    library = {"in_library": LIBRARY} if "generate" in source else {}
    made = fix(source + "\n", finding(code, line, **library))
    assert isinstance(made, Declined), made
    assert why in str(made)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            STEP + "torch.tanh(x) / i\nx = s\nfor i in range(9):\n    x = step(x, i)",
            "otherwise than",
        ),
        (
            STEP + "x * i\nx = s\nfor i in range(9):\n    x = step(x, i)",
            "not known to be a tensor",
        ),
        (
            STEP + "x.sin() * i\nx = s\nfor i in range(999):\n    x = step(x, i)",
            "to stay below 256",
        ),
        (STEP + "x.sin() * i\nstep(x, 1)\nstep(x, 2)", "not called in one place only"),
        (STEP + "x.sin() * i\nstep(x, 1)", "only the counter of a `for ... in range(...)` can become a tensor"),
    ],
)
def test_counters_that_stay(source: str, why: str) -> None:
    made = fix(f"import torch\n{source}\n", finding("GR403", 2, region="step"))
    assert isinstance(made, Declined), made
    assert why in str(made)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("for x in xs:\n    y = net(x)\n    learn(y)", "`learn` may use gradients"),
        ("for x in xs:\n    y = net(x)\n    agent.learn(y)", "`agent.learn` may use gradients"),
        ("for x in xs:\n    net(x).sum().backward()", "`backward` needs the gradients"),
        ("with torch.no_grad():\n    for x in xs:\n        y = net(x)", "it runs without gradients already"),
        ("@torch.no_grad()\ndef f():\n    for x in xs:\n        y = net(x)\n", "it runs without gradients already"),
        ("y = net(x)\nz = net(y)", "the region is called in several places"),
        ("y = other(x)", "where the region is called is not in this source"),
    ],
)
def test_gradients_that_stay(source: str, why: str) -> None:
    made = fix(f"import torch\n{source}\n", finding("GR405", 3, region="Linear (net)", needs_grad=True))
    assert isinstance(made, Declined), made
    assert why in str(made)


def test_code_of_a_library_is_not_rewritten() -> None:
    made = fix("a = []\nfor x in xs:\n    a.append(x.item())\n", finding("GR101", 3, in_library="lib.py, line 3"))
    assert made == Declined(why="it is a library's code")
