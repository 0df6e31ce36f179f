"""What code of the person's reaches without naming it is compared, or the region is refused."""

from __future__ import annotations

import decimal
import math
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from grape.runtime.guarding.guards import GuardSet
from grape.runtime.state.names import TooLarge

net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU()).eval()

SEC = "S = 1.5\nclass O:\n def sec(self): return S\no = O()\n"
THIRD = "S = 1.5\nclass O:\n @property\n def third(self): return S\no = O()\n"
TEXT = "S = 1.5\nclass O:\n def __str__(self): return str(S)\no = O()\n"
CLOCK = "import time\nclass O:\n def __str__(self): return str(time.time())\no = O()\n"
KEYS = """
S = 1.5
class O:
    def keys(self): return ['a'] if S == 1.5 else []
    def __getitem__(self, key): return 1
o = O()
"""
MODULES = """
S = 1.5
class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)
    def forward(self, x): return self.lin(x)
"""
OTHER = "S = 2.5"

SEEN: dict[str, tuple[str, str, str]] = {
    # functions of the standard library that reach into objects
    "a method that a methodcaller calls": (SEC + "import operator; c = operator.methodcaller('sec')", "c(o)", OTHER),
    "an attribute that an attrgetter reads": (
        THIRD + "import operator; c = operator.attrgetter('third')",
        "c(o)",
        OTHER,
    ),
    "getattr by another name": (SEC + "ga = getattr; nm = 'sec'", "ga(o, nm)()", OTHER),
    "getattr in a partial": (
        SEC + "import functools; ga = functools.partial(getattr, o)",
        "ga('se' + 'c')()",
        OTHER,
    ),
    "a field of a format": (THIRD, "float('{0.third}'.format(o))", OTHER),
    "what str shows": (TEXT, "float(str(o))", OTHER),
    "what a format shows": (TEXT, "float(f'{o}')", OTHER),
    "what % shows": (TEXT, "float('%s' % o)", OTHER),
    "keys of a mapping": (KEYS, "len({**o})", OTHER),
    "a factory": (
        "import collections; c = collections.defaultdict(lambda: 1.5)",
        "c.default_factory()",
        "c.default_factory = lambda: 2.5",
    ),
    "a partial made anew": (
        "import functools; c = functools.partial(lambda s: s, 1.5)",
        "c()",
        "c.__setstate__((c.func, (2.5,), {}, {}))",
    ),
    "an attribute of a partial": ("import functools; c = functools.partial(lambda: 1); c.k = 1.5", "c.k", "c.k = 2.5"),
    "a cell that is not bound": (
        "def mk():\n def g():\n  try: return k\n  except NameError: return 1.5\n"
        " def put(v):\n  nonlocal k\n  k = v\n if 0: k = 0\n return g, put\ng, put = mk()",
        "g()",
        "put(2.5)",
    ),
    "the module of a class": ("class C: pass", "len(C.__module__)", "C.__module__ = 'elsewhere'"),
    "the module of a function": ("def g(): pass", "len(g.__module__)", "g.__module__ = 'elsewhere'"),
    "items of tuples in a set": ("c = {(0.0,)}", "next(iter(c))[0]", "c.clear(); c.add((-0.0,))"),
    "types in tuples in a set": ("c = {(2.0,)}", "0.5 + isinstance(next(iter(c))[0], int)", "c.clear(); c.add((2,))"),
    "who says that it equals all": (
        "class E:\n k = 1.5\n def __eq__(self, other): return True\n def __hash__(self): return 1\nc = {E()}",
        "next(iter(c)).k",
        "e = E(); e.k = 2.5; c.clear(); c.add(e)",
    ),
    # modules
    "a module in a list": ("c = [math]", "c[0].pi", "math.pi = 3.0"),
    "a module that is a default": ("def g(m=math): return m.pi", "g()", "math.pi = 3.0"),
    "a module that is handed over": ("def g(m): return m.pi", "g(math)", "math.pi = 3.0"),
    "a module in an attribute": ("import types; c = types.SimpleNamespace(m=math)", "c.m.pi", "math.pi = 3.0"),
    "a name that a library gets": ("", "getattr(math, 'hscale', 1.5)", "math.hscale = 2.5"),
    # nn.Module calls these itself
    "parameters by another name": (
        MODULES + "class N(M):\n def named_parameters(self, *a, **k):\n"
        "  return ((n, p * S) for n, p in super().named_parameters(*a, **k))\nn = N()",
        "sum(p.sum() for p in n.parameters())",
        OTHER,
    ),
    "train that eval calls": (
        MODULES + "class N(M):\n def train(self, mode=True):\n  self.k = S\n  return super().train(mode)\nn = N()",
        "n.eval().k",
        OTHER,
    ),
    "the call of a module": (
        MODULES + "class N(M):\n def _call_impl(self, *a, **k): return super()._call_impl(*a, **k) * S\nn = N()",
        "n(x).sum()",
        OTHER,
    ),
    "state that a module makes": (
        MODULES + "class N(M):\n def get_extra_state(self): return S\nn = N()",
        "n.state_dict()['_extra_state']",
        OTHER,
    ),
    "what a module says": (
        MODULES + "class N(M):\n def extra_repr(self): return 'a' if S == 1.5 else 'abc'\nn = N()",
        "len(str(n))",
        OTHER,
    ),
    "a module in a wrapper": (
        "n = torch.nn.Linear(4, 4)\nc = torch.no_grad()(n)",
        "c(x).sum()",
        "n.bias = None",
    ),
    "a module of the person's in a wrapper": (
        MODULES + "n = M(); n.scale = 1.5\nM.forward = lambda self, x: x * self.scale\nc = torch.no_grad()(n)",
        "c(x).sum()",
        "n.scale = 2.5",
    ),
    # NumPy
    "a polynomial": ("c = np.poly1d([1., .5])", "float(c(1.0))", "c[0] = 3.0"),
    "a vectorized function": ("S = 1.5; c = np.vectorize(lambda v: v * S)", "float(c(1.0))", OTHER),
    "a record": ("a = np.zeros(1, dtype=[('s', 'f8')]); c = a[0]", "float(c['s'])", "a['s'] = 2.5"),
    # modes
    "autocast of another device": (
        "",
        "float(torch.is_autocast_enabled('cuda'))",
        "torch.set_autocast_enabled('cuda', True)",
    ),
}
"""What is defined, what the function reads of it, and what changes that."""

REFUSED: dict[str, tuple[str, str]] = {
    "globals by a string": ("S = 1.5\ndef g(): return S", "getattr(g, '__globals__')['S']"),
    "documentation by a string": ("class C:\n 'a'", "len(C.__dict__['__doc__'])"),
    "documentation by an attrgetter": (
        "import operator\nclass C:\n 'a'\nc = operator.attrgetter('__doc__')",
        "len(c(C))",
    ),
    "a clock that str reads": (CLOCK, "float(str(o))"),
    "a clock that % reads": (CLOCK, "float('%s' % o)"),
    "a clock that a format reads": (CLOCK, "float(f'{o}')"),
    "precision of decimals": ("import decimal\nD = decimal.Decimal", "float(D(1) / D(3))"),
    "a flat view": ("a = np.ones(3); c = a.flat", "float(c[0])"),
    "a ufunc of a function": ("S = 1.5; c = np.frompyfunc(lambda v: v * S, 1, 1)", "float(c(1.0))"),
}
"""What nobody can compare."""


def function(definitions: str, expression: str) -> tuple[types.FunctionType, dict[str, Any]]:
    names: dict[str, Any] = {"__name__": __name__, "torch": torch, "math": math, "net": net}
    names["np"] = pytest.importorskip("numpy")
    exec(compile(f"{definitions}\ndef f(x): return net(x) * ({expression})", __file__, "exec"), names)
    return names["f"], names


def bits(result: torch.Tensor) -> bytes:
    return result.detach().numpy().tobytes()


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    autocast, pi = torch.is_autocast_enabled("cuda"), math.pi
    with decimal.localcontext():
        yield
    torch.set_autocast_enabled("cuda", autocast)
    math.pi = pi  # type: ignore[misc]
    vars(math).pop("hscale", None)


@pytest.mark.parametrize("name", SEEN)
def test_a_change_is_seen(name: str) -> None:
    definitions, expression, change = SEEN[name]
    f, names = function(definitions, expression)
    x = torch.ones(2, 4)
    before = bits(f(x))
    guards = GuardSet(f)
    assert guards.holds()
    exec(change, names)
    assert bits(f(x)) != before, "the program of this test changes nothing"
    assert not guards.holds()


@pytest.mark.parametrize("name", REFUSED)
def test_what_nobody_can_compare_is_refused(name: str) -> None:
    with pytest.raises(TooLarge):
        GuardSet(function(*REFUSED[name])[0])


def test_a_call_of_code_that_no_guard_follows_is_refused() -> None:
    f, names = function("def g(): return 1.5", "g()")
    guards = GuardSet(f)
    ran = {f.__code__, names["g"].__code__}
    assert guards.refuse_strays(ran) is None
    stray = guards.refuse_strays({*ran, function("", "2")[0].__code__})
    assert stray is not None and "`f` is called, to which no name leads" in str(stray)
