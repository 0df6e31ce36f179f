"""A report says that `%grape diff` shows a rewrite where the syntax tree tells of one."""

from __future__ import annotations

import ast
from dataclasses import replace
from textwrap import dedent

import pytest

from grape.model import Finding
from grape.rewrite.likely import has_likely_fix
from tests.unit.rewrite_cases import finding
from tests.unit.sample_evidence import cell, region
from tests.unit.test_rewrite_fixes import CASES, LIBRARY, Case


def likely(source: str, about: Finding) -> bool:
    return has_likely_fix(replace(cell(region()), file="In[1]", source=source), about)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code} {case.name}")
def test_what_is_rewritten_is_said(case: Case) -> None:
    source = dedent(case.before)
    assert likely(source, finding(case.code, case.line, region=case.region, **case.evidence))
    assert likely("%%grape\n" + source, finding(case.code, case.line + 1, region=case.region, **case.evidence))


COUNTED = "def step(x, i):\n    return x.sin() * i\n"
NET = {"region": "Linear (net)", "needs_grad": True}


@pytest.mark.parametrize(
    ("code", "line", "source", "about"),
    [
        ("GR101", 2, "for x in xs:\n    print(x.item())", {}),
        ("GR101", 2, "for x in xs:\n    preds.extend(f(x).tolist())", {}),
        ("GR101", 2, "for x in xs:\n    y = x.item()", {}),
        ("GR101", 2, "for x in xs:\n    if f(x).item() > 3: break", {}),
        ("GR101", 3, "a = []\nfor x in xs:\n    a.append(x.item()); b.append(y.item())", {}),
        ("GR101", 2, "for x in xs:\n    a.append(f(x).item())", {}),
        ("GR101", 4, "t = 0\nfor x in xs:\n    print(t)\n    t += f(x).item()", {}),
        ("GR101", 3, "t = 0\nfor x in xs:\n    t += f(x).item() * w", {}),
        ("GR101", 3, "a = []\nfor x in xs:\n    a.append(np.mean(x.numpy()).item())", {}),
        ("GR101", 4, "a = []\nwith lock:\n    for x in xs:\n        a.append(f(x).item())", {}),
        ("GR101", 1, "y = x.item()", {}),
        ("GR102", 2, "for x in xs:\n    if x.sum() > 0: break", {}),
        ("GR103", 1, "y = x[x > 0].mean()", {}),
        ("GR103", 1, "x[x > 0] += 1", {}),
        ("GR202", 1, "model.generate(x, past_key_values=c)", {"in_library": LIBRARY}),
        ("GR202", 1, "out = sample(model, x)", {"in_library": LIBRARY}),
        ("GR202", 3, "for i in r:\n    y = f(k)\n    k = torch.cat([k, y], 1)", {}),
        ("GR203", 1, "out = model(x)", {"operator": "aten::convolution"}),
        ("GR302", 1, "y = f(x)", {}),
        ("GR303", 1, "for x, y in loader:\n    step(x, y)", {}),
        ("GR401", 2, "for x in xs:\n    y = x * torch.tensor(values)", {}),
        ("GR403", 3, "opt = make()\nfor x in xs:\n    opt.step()", {}),
        ("GR403", 2, f"{COUNTED}step(x, 1)\nstep(x, 2)", {"region": "step"}),
        ("GR404", 2, "def step(x):\n    self.calls += 1\n    return x", {}),
        ("GR405", 2, "for x in xs:\n    act(x)", {"region": "act"}),
        ("GR405", 2, "for x in xs:\n    net(x).sum().backward()", NET),
        ("GR405", 2, "for x in xs:\n    learn(net(x))", NET),
        ("GR405", 3, "with torch.no_grad():\n    for x in xs:\n        y = net(x)", NET),
        ("GR406", 1, "y = step(x)", {}),
    ],
)
def test_where_there_is_none_none_is_said(code: str, line: int, source: str, about: dict[str, object]) -> None:
    ast.parse(source)
    assert not likely(source + "\n", finding(code, line, **about))  # type: ignore[arg-type]


def test_of_code_that_is_not_known_nothing_is_said() -> None:
    about = finding("GR101", 3, file="In[9]")
    assert not likely("a = []\nfor x in xs:\n    a.append(f(x).item())\n", about)
    assert not likely("a = [\n", finding("GR101", 1)) and not likely("%%bash\nls\n", finding("GR101", 2))
