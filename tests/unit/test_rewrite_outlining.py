"""Which statements of which loops become runs, and what stands in their place."""

from __future__ import annotations

import ast
import re

import pytest

from grape.rewrite.outlining import Outlined, mark_of, names_of, outline_function, outline_loops


def shown(outlined: Outlined) -> str:
    """The new source, with LOOP0 and RUN0 for the marks."""
    text = "\n".join(ast.unparse(ast.fix_missing_locations(statement)) for statement in outlined.body)
    return re.sub(r"\('\\x00grape outlining', '(\w+)', (\d+)\)", lambda m: m[1].upper() + m[2], text)


def cell(source: str) -> Outlined | None:
    return outline_loops(ast.parse(source).body)


def function(source: str) -> Outlined | None:
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.FunctionDef)
    return outline_function(definition)


def runs(outlined: Outlined | None) -> list[str]:
    """The statements of each run; one that stands in several copies of the code is told once."""
    found = outlined.runs if outlined is not None else ()
    return list(dict.fromkeys("; ".join(map(ast.unparse, run.statements)) for run in found))


FOR = """\
for i, x in enumerate(xs):
    h = f(x) + b
    losses.append(h)
else:
    print(i)
"""
AFTER_FOR = """\
for i, x in LOOP0.head(enumerate(xs)):
    if RUN0.live:
        try:
            RUN0.run()
        except:
            RUN0.mend()
            if RUN0.raised_at(2):
                raise
            if RUN0.raised_at(3):
                raise
            raise
    else:
        h = f(x) + b
        losses.append(h)
else:
    for i, x in LOOP0.rest():
        h = f(x) + b
        losses.append(h)
    else:
        print(i)"""
WHILE = "while n < 3:\n    n = f(n) + 1\nelse:\n    done()\n"
AFTER_WHILE = """\
while LOOP0.stays() and (n < 3 or LOOP0.ends()):
    if RUN0.live:
        try:
            RUN0.run()
        except:
            RUN0.mend()
            if RUN0.raised_at(2):
                raise
            raise
    else:
        n = f(n) + 1
else:
    if LOOP0.left():
        while n < 3:
            n = f(n) + 1
        else:
            done()
    else:
        done()"""
FUNCTION = """\
def f(x, w, n):
    for i in range(n):
        t = x @ w
        x = tanh(t) + 1
    return x
"""
AFTER_FUNCTION = """\
def f(x, w, n):
    for i in LOOP0.head(range(n)):
        if RUN0.live:
            t = None
            try:
                x, = RUN0.run(x, w)
            except:
                RUN0.mend()
                if RUN0.has('x'):
                    x = RUN0.take('x')
                if RUN0.raised_at(3):
                    raise
                if RUN0.raised_at(4):
                    raise
                raise
        else:
            t = x @ w
            x = tanh(t) + 1
    else:
        for i in LOOP0.rest():
            t = x @ w
            x = tanh(t) + 1
    return x"""


@pytest.mark.parametrize(
    ("before", "after"), [(FOR, AFTER_FOR), (WHILE, AFTER_WHILE)], ids=["for and else", "while and else"]
)
def test_a_loop_has_a_head_and_a_rest(before: str, after: str) -> None:
    tree = ast.parse(before)
    plain = ast.dump(tree, include_attributes=True)
    outlined = outline_loops(tree.body)
    assert outlined is not None
    assert shown(outlined) == after
    assert ast.dump(tree, include_attributes=True) == plain
    compile(ast.fix_missing_locations(ast.Module(list(outlined.body), [])), "cell", "exec")


def test_a_function_gives_its_names_to_a_run_and_takes_them_back() -> None:
    outlined = function(FUNCTION)
    assert outlined is not None
    assert shown(outlined) == AFTER_FUNCTION
    compile(ast.fix_missing_locations(ast.Module(list(outlined.body), [])), "cell", "exec")


RUNS = {
    "effects stay in between": (
        "for x in xs:\n a = f(x) + 1\n print(a)\n b = g(a) * 2\n",
        ["a = f(x) + 1", "b = g(a) * 2"],
    ),
    "reads of the host": (
        "for x in xs:\n a = f(x) + 1\n t = a.item() + 1\n b = g(a) * 2\n",
        ["a = f(x) + 1", "b = g(a) * 2"],
    ),
    "jumps": ("for x in xs:\n a = f(x) + 1\n if a: break\n b = g(a) * 2\n", ["a = f(x) + 1", "b = g(a) * 2"]),
    "branches are part of it": ("for x in xs:\n a = f(x)\n if a > 0: a = -a\n", ["a = f(x); if a > 0:\n    a = -a"]),
    "inside of blocks": (
        "for x in xs:\n with no_grad():\n  a = f(x) + 1\n  print(a)\n",
        ["a = f(x) + 1"],
    ),
    "inside of try": (
        "for x in xs:\n try:\n  a = f(x) + 1\n except E:\n  a = g(x) + 1\n",
        ["a = f(x) + 1", "a = g(x) + 1"],
    ),
    "one call is its callee's": ("for x in xs:\n y = net(x)\n", []),
    "one operation is nothing": ("for i in range(9):\n total += i\n", []),
    "attributes of objects": ("for x in xs:\n a = f(x) + 1\n o.state = a\n", ["a = f(x) + 1"]),
    "definitions": ("for x in xs:\n a = f(x) + 1\n def g(): return a\n", ["a = f(x) + 1"]),
    "lambdas and generators": (
        "for x in xs:\n a = f(x) + 1\n k = lambda: a + a * 2\n s = sum(t + 1 for t in a)\n",
        ["a = f(x) + 1"],
    ),
    "comprehensions": ("for x in xs:\n a = [t * 2 for t in f(x)]\n", ["a = [t * 2 for t in f(x)]"]),
    "del, import, annotation": (
        "for x in xs:\n a = f(x) + 1\n del x\n import os\n b: int = f(1) + 2\n",
        ["a = f(x) + 1"],
    ),
    "names of the interpreter": ("for x in xs:\n a = f(x) + 1\n b = locals() or f(2) + 1\n", ["a = f(x) + 1"]),
    "formatted text": ("for x in xs:\n a = f(x) + 1\n s = f'{a + 1} {f(a)}'\n", ["a = f(x) + 1"]),
    "a short inner loop": (
        "for x in xs:\n a = x\n for j in range(3): a = f(a) + j\n",
        ["a = f(a) + j", "a = x; for j in range(3):\n    a = f(a) + j"],
    ),
    "an inner loop of unknown length": (
        "for x in xs:\n a = f(x) + 1\n for j in range(n): a = f(a) + j\n",
        ["a = f(a) + j", "a = f(x) + 1"],
    ),
    "awaits": ("for x in xs:\n a = f(x) + 1\n await g(a)\n", []),
    "loops in blocks": ("if c:\n with d:\n  for x in xs:\n   a = f(x) + 1\n", ["a = f(x) + 1"]),
    "no loop": ("a = f(x) + 1\nb = [f(x) + 1 for x in xs]\n", []),
}


@pytest.mark.parametrize("name", RUNS)
def test_runs_of_a_cell(name: str) -> None:
    source, expected = RUNS[name]
    outlined = cell(source)
    assert runs(outlined) == expected
    assert (outlined is None) == (not expected)


LOCAL = {
    "what nobody reads later is not returned": ("t = x * 2\n  x = t + 1", [(("x",), ("x",))]),
    "what the next iteration reads is": ("s = x + s0\n  s0 = s * 2", [(("x", "s0"), ("s0",))]),
    "a name that may stay unbound is taken too": ("if x > 0: r = f(x) + 1\n  y = x * 2 + 1", [(("x", "r"), ("r",))]),
    "a name that may be unbound": ("if x > 0: q = f(x) + 1\n  print(q)", []),
    "a name that a nested function sees": ("x = f(x) + 1\n  def g(): return x", []),
    "a global is no argument": ("x = x * SCALE + 1", [(("x",), ("x",))]),
}


@pytest.mark.parametrize("name", LOCAL)
def test_names_of_runs_in_a_function(name: str) -> None:
    body, expected = LOCAL[name]
    outlined = function(f"def f(x, s0, r=0):\n for i in range(9):\n  {body}\n return x, s0, r\n")
    found = [(run.local.inputs, run.local.outputs) for run in (outlined.runs if outlined else ()) if run.local]
    assert list(dict.fromkeys(found)) == expected


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n global g\n for i in x:\n  g = i * 2 + 1\n",
        "def f(x):\n for i in x:\n  g = i * 2 + 1\n  yield g\n",
        "def f(x):\n for i in x:\n  g = i * 2 + 1\n return locals()\n",
        "def f(x):\n for i in x:\n  g = i * 2 + 1\n  del g\n",
        "def f(self):\n for i in self.__x:\n  g = i * 2 + 1\n",
        "@torch.compile\ndef f(x):\n for i in x:\n  g = i * 2 + 1\n",
        "def f(x):\n def g():\n  nonlocal y\n  y = 1\n y = 0\n for i in x:\n  g()\n  y = y * 2 + 1\n",
    ],
)
def test_functions_whose_names_others_see_stay_as_they_are(source: str) -> None:
    assert function(source) is None


NAMES = {
    "a = b; b = a": ({"a", "b"}, {"a", "b"}, {"b"}),
    "a += 1": ({"a"}, {"a"}, {"a"}),
    "if c: a = 1\nb = a": ({"a", "b"}, {"b"}, {"c", "a"}),
    "if c: a = 1\nelse: a = 2\nb = a": ({"a", "b"}, {"a", "b"}, {"c"}),
    "for i in x: a = i\nb = a": ({"i", "a", "b"}, {"b"}, {"x", "a"}),
    "with torch.no_grad(): a = 1\nb = a": ({"a", "b"}, {"a", "b"}, {"torch"}),
    "with swallow(): a = 1\nb = a": ({"a", "b"}, {"b"}, {"swallow", "a"}),
    "s = [i + k for i in x if i]": ({"s"}, {"s"}, {"x", "k"}),
    "s = [(last := i) for i in x]": ({"s", "last"}, {"s"}, {"x"}),
    "f = lambda z, y=k: z + w": ({"f"}, {"f"}, {"k", "w"}),
    "a and (b := c)\nd = b": ({"b", "d"}, {"d"}, {"a", "c", "b"}),
    "x[i] = y": (set(), set(), {"x", "i", "y"}),
    "a, *b = c": ({"a", "b"}, {"a", "b"}, {"c"}),
    "try: a = 1\nexcept E as e: b = e\nc = a": ({"a", "b", "c", "e"}, {"c"}, {"E", "a"}),
}


@pytest.mark.parametrize("source", NAMES)
def test_names(source: str) -> None:
    names = names_of(ast.parse(source).body)
    assert (set(names.stores), names.sure, set(names.first)) == NAMES[source]


def test_loops_are_known_by_source_and_position() -> None:
    here, again, lower = cell(FOR), cell(FOR), cell("\n" + FOR)
    assert here is not None
    assert again is not None
    assert lower is not None
    assert here.loops == again.loops
    assert here.loops[0].key != lower.loops[0].key
    assert (here.loops[0].line, lower.loops[0].line) == (1, 2)


@pytest.mark.parametrize("constant", ["grape", ("loop", 1), None, (1, 2, 3)])
def test_other_constants_are_no_marks(constant: object) -> None:
    assert mark_of(constant) is None


def test_names_that_only_a_run_reads_hold_nothing_of_an_iteration_as_written() -> None:
    """The run does not give them back, so what an earlier iteration bound to them would live as long as the call."""
    outlined = function(
        "def train(xs):\n    total = 0\n    for x in xs:\n        loss = f(x)\n        loss.backward()\n"
        "        total = total + x\n        last = x * 2\n    return total, last\n"
    )
    assert outlined is not None
    local = outlined.runs[0].local
    assert local is not None and local.temporaries == ("loss",) and set(local.outputs) == {"total", "last"}
    assert "    if RUN0.live:\n            loss = None\n            try:" in shown(outlined)
