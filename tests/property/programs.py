"""Two copies of one world, one served by Grape and one eager, that must never differ; and random programs for them.

A *world* is whatever a program owns: functions, modules, tensors. `Twins` builds it twice, drives both with the same
calls and compares results, arguments, state, random state and aliasing after each call, bit for bit.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
from hypothesis import seed, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from grape.runtime import GraphedFunction
from grape.runtime.accounts import policy as _policy
from grape.runtime.backends.protocol import Backend
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.buffers.lifetimes import Lifetimes

__all__ = ["Program", "Twins", "World", "codes", "eager_to_graph", "run_program", "same", "seeded"]

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


# -- comparing -------------------------------------------------------------------------------------------------------


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.contiguous().view(_BITS[tensor.element_size()])


_NUMBERS = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_OPAQUE = (types.FunctionType, types.ModuleType, types.BuiltinFunctionType, torch.Generator, type)


class _Comparison:
    """A path is its parts, each with the one around it: few are ever read."""

    def __init__(self, *, versions: bool) -> None:
        self.versions = versions
        self.storages: dict[int, int] = {}
        self.identities: dict[int, int] = {}
        self.seen: set[int] = set()

    def tensor(self, mine: torch.Tensor, theirs: torch.Tensor, path: Any) -> None:
        for name in ("shape", "dtype", "device", "requires_grad", "is_leaf"):
            a, b = getattr(mine, name), getattr(theirs, name)
            assert a == b, f"{_said(path)}.{name} is {b}, eager has {a}"
        assert type(mine) is type(theirs), (
            f"{_said(path)} is a {type(theirs).__name__}, eager has {type(mine).__name__}"
        )
        if mine.layout is not torch.strided:
            assert torch.equal(_bits(mine.to_dense()), _bits(theirs.to_dense())), (
                f"{_said(path)} is {theirs}, eager has {mine}"
            )
            return
        assert (mine.is_conj(), mine.is_neg()) == (theirs.is_conj(), theirs.is_neg()), (
            f"{_said(path)} is read otherwise"
        )
        assert mine.stride() == theirs.stride(), (
            f"{_said(path)}.stride() is {theirs.stride()}, eager has {mine.stride()}"
        )
        assert torch.equal(_bits(mine), _bits(theirs)), f"{_said(path)} is {theirs}, eager has {mine}"
        assert mine.is_inference() == theirs.is_inference(), (
            f"{_said(path)} was made in inference mode, or was not, as in eager"
        )
        one, other = type(mine.grad_fn).__name__, type(theirs.grad_fn).__name__
        assert one == other, f"{_said(path)} has an autograd graph that ends with {other}, eager with {one}"
        assert mine.output_nr == theirs.output_nr, f"{_said(path)} is result {theirs.output_nr} of its node"
        if self.versions and not mine.is_inference():
            assert mine._version == theirs._version, (
                f"{_said(path)} has version {theirs._version}, eager has {mine._version}"
            )
        if mine.is_leaf:
            self.value(mine.grad, theirs.grad, (path, ".grad"))
        for table, one, other in (
            (self.identities, id(mine), id(theirs)),
            (self.storages, mine.untyped_storage()._cdata, theirs.untyped_storage()._cdata),
        ):
            known = table.setdefault(one, other)
            back = table.setdefault(-other, one)
            assert known == other and back == one, f"{_said(path)} aliases other tensors than in the eager world"

    def value(self, mine: Any, theirs: Any, path: Any) -> None:
        # Each twin may have made a class of its own; then the names tell.
        assert type(mine) is type(theirs) or _name_of(type(mine)) == _name_of(type(theirs)), (
            f"{_said(path)} is a {type(theirs)}, eager has {type(mine)}"
        )
        if isinstance(mine, torch.Tensor):
            self.tensor(mine, theirs, path)
            return
        if isinstance(mine, _NUMBERS):
            assert mine is theirs or repr(mine) == repr(theirs), f"{_said(path)} is {theirs!r}, eager has {mine!r}"
            return
        if isinstance(mine, _OPAQUE):
            return
        known = self.identities.setdefault(id(mine), id(theirs))
        assert known == id(theirs), f"{_said(path)} is another object than in the eager world"
        if id(mine) in self.seen:
            return
        self.seen.add(id(mine))
        self.container(mine, theirs, path)

    def container(self, mine: Any, theirs: Any, path: Any) -> None:
        if isinstance(mine, (set, frozenset)):
            assert sorted(map(repr, mine)) == sorted(map(repr, theirs)), (
                f"{_said(path)} is {theirs!r}, eager has {mine!r}"
            )
        if isinstance(mine, dict):
            self.mapping(mine, theirs, path)
        if isinstance(mine, (list, tuple, collections.deque)):
            assert len(mine) == len(theirs), f"{_said(path)} has {len(theirs)} items, eager has {len(mine)}"
            for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
                self.value(a, b, (path, i))
        if isinstance(mine, collections.defaultdict):
            assert mine.default_factory is theirs.default_factory, f"{_said(path)} lost its default factory"
        if isinstance(getattr(mine, "__dict__", None), dict):
            self.mapping(_attributes(mine), _attributes(theirs), path)
        for slot in _slots(type(mine)):
            if hasattr(mine, slot):
                self.value(getattr(mine, slot), getattr(theirs, slot), (path, f".{slot}"))

    def mapping(self, mine: dict[Any, Any], theirs: dict[Any, Any], path: Any) -> None:
        keys = [*map(_key, mine)]
        assert keys == [*map(_key, theirs)], f"{_said(path)} has keys {list(theirs)}, not {list(mine)}"
        for key, a, b in zip(mine, mine.values(), theirs.items(), strict=True):
            if isinstance(key, torch.Tensor):
                self.value(key, b[0], (path, " key"))
            self.value(a, b[1], (path, key))


def _said(path: Any) -> str:
    if not isinstance(path, tuple):
        return str(path)
    around, part = path
    if isinstance(part, str) and part.startswith((".", " ")):
        return _said(around) + part
    return f"{_said(around)}[{'a tensor' if isinstance(part, torch.Tensor) else repr(part)}]"


def _name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _key(name: Any) -> Any:
    """Strings are as they are written: to write them again for each comparison takes longer than to compare."""
    return name if type(name) is str else "a tensor" if isinstance(name, torch.Tensor) else (repr(name),)


@functools.cache
def _slots(cls: type) -> tuple[str, ...]:
    return tuple(slot for base in cls.__mro__ for slot in getattr(base, "__slots__", ()))


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes, without the hooks of modules: their keys count up over the whole process."""
    return {name: item for name, item in vars(value).items() if not name.endswith("_hooks")}


def same(mine: Any, theirs: Any, path: str = "value", *, versions: bool = True) -> None:
    """Assert that two trees are equal: types, bits, version counters, keys in order, identities and shared storages."""
    _Comparison(versions=versions).value(mine, theirs, path)


# -- twins -----------------------------------------------------------------------------------------------------------


class World(types.SimpleNamespace):
    """What one of the twins owns. `function` is what is called."""


class _Everything(frozenset[str]):
    """All paths."""

    def __contains__(self, path: object) -> bool:
        return True


@contextmanager
def eager_to_graph(*, in_place: bool = False) -> Iterator[None]:
    """Capture as soon as the runtime may: after one timed call instead of several.

    With `in_place` every result is handed out in place, whatever was seen of its life: only the check of the occupant
    stands between a replay and a tensor that somebody holds.
    """
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(_policy, "FEW", 1))
        if in_place:
            stack.enter_context(mock.patch.object(Lifetimes, "passing", lambda self: _Everything()))
        yield


Call = Callable[[World], "tuple[tuple[Any, ...], dict[str, Any]]"]


class Twins:
    """`build` makes a world; it is called twice. `kept` are earlier results that no later call may overwrite."""

    versions = True
    """Whether version counters are compared."""

    def __init__(
        self,
        build: Callable[[], World],
        backend: Backend | None = None,
        *,
        graph_of: str = "function",
        in_place: bool = False,
    ) -> None:
        self.in_place = in_place
        self.backend = backend or ReferenceBackend(poison=True)
        torch.manual_seed(1)
        self.eager = build()
        torch.manual_seed(1)
        self.world = build()
        self.graphed = GraphedFunction(getattr(self.world, graph_of), backend=self.backend, tolerance=0.0)
        self.name = graph_of
        self.calls = self.replays_at_end = 0
        self.refused_at_end: Any = None
        self.random: Any = self.backend.rng_state()
        self.results: list[tuple[Any, Any]] = []
        self.last: tuple[Any, Any] = (None, None)

    def both(self, act: Callable[[World], Any]) -> None:
        """Do something to both worlds, under equal random states."""
        for world in (self.eager, self.world):
            state = self.backend.rng_state()
            act(world)
            if world is self.eager:
                self.backend.set_rng_state(state)

    def call(self, call: Call, *, keep: bool = True) -> Any:
        """Call both; compare everything; return Grape's result (or the exception that both raised)."""
        self.calls += 1
        outcomes = []
        before = self.backend.rng_state()
        states = []
        for world, function in ((self.eager, getattr(self.eager, self.name)), (self.world, self.graphed)):
            self.backend.set_rng_state(before)
            args, kwargs = call(world)
            error: Exception | None = None
            result: Any = None
            try:
                with eager_to_graph(in_place=self.in_place):
                    result = function(*args, **kwargs)
            except Exception as raised:
                error = raised
            outcomes.append((result, args, kwargs, vars(world), None if error is None else type(error)))
            if error is not None and world is self.world and outcomes[0][4] is None:
                raise AssertionError(f"call {self.calls}: Grape raised, the eager world did not") from error
            states.append(self.backend.rng_state())
        self.last = (outcomes[0][0], outcomes[1][0])
        if keep:
            self.results.append(self.last)
        mine, theirs = ((*o, [r[i] for r in self.results]) for i, o in enumerate(outcomes))
        try:
            same(_without_functions(mine), _without_functions(theirs), f"call {self.calls}", versions=self.versions)
            assert _same_state(*states), f"call {self.calls}: the random state differs"
        except AssertionError as error:
            evidence = self.graphed.evidence()
            error.add_note(
                f"replays so far: {evidence.replays if evidence else 0}; refused: {evidence and evidence.refused}"
            )
            raise
        return outcomes[1][0]

    def calls_of(self, call: Call, times: int) -> None:
        for _ in range(times):
            self.call(call)

    def warm(self, call: Call, *, limit: int = 8) -> None:
        """Call until a graph replays. Fails where none does."""
        start = self.replays
        for _ in range(limit):
            self.call(call)
            if self.replays > start:
                return
        raise AssertionError(f"not replayed in {limit} calls: {self.refused}")

    @property
    def replays(self) -> int:
        evidence = self.graphed.evidence()
        return evidence.replays if evidence else self.replays_at_end

    @property
    def refused(self) -> Any:
        evidence = self.graphed.evidence()
        return evidence.refused if evidence else self.refused_at_end

    def close(self) -> None:
        self.replays_at_end, self.refused_at_end = self.replays, self.refused
        self.graphed.release()


def _without_functions(outcome: tuple[Any, ...]) -> tuple[Any, ...]:
    state = {k: v for k, v in outcome[3].items() if not isinstance(v, (types.FunctionType, GraphedFunction))}
    return (*outcome[:3], state, *outcome[4:])


def _same_state(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, list)):
        return all(_same_state(a, b) for a, b in zip(one, other, strict=True))
    return bool(torch.equal(one, other)) if isinstance(one, torch.Tensor) else bool(one == other)


# -- random programs -------------------------------------------------------------------------------------------------

WIDTH = 4
"""Every value is [rows, WIDTH]; rows change from call to call."""


@dataclasses.dataclass
class Box:
    h: Any
    n: int = 0


class Point(NamedTuple):
    first: Any
    second: Any


class Plain:
    def __init__(self, h: Any) -> None:
        self.h = h
        self.log: list[Any] = []


class Unit(nn.Module):
    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH), requires_grad=False)
        self.bias = nn.Parameter(torch.randn(WIDTH), requires_grad=False)
        self.register_buffer("total", torch.zeros(2, WIDTH))
        self.scale = 0.5
        self.flag = True
        self.counter = 0
        self.extra = {"shift": 0.25, "table": torch.randn(3, WIDTH)}
        self.to(device)
        self.extra["table"] = self.extra["table"].to(device)
        self.tail = self.total[1:]


@dataclasses.dataclass
class Context:
    """What an instruction may use: the module, the scalar and mask of this call, and the call's container."""

    unit: Unit
    scalar: Any
    mask: torch.Tensor
    box: Any
    rows: torch.Tensor


Values = torch.Tensor
UNARY: dict[str, Callable[[Context, Values], Values]] = {
    "neg": lambda c, a: -a,
    "tanh": lambda c, a: a.tanh(),
    "softmax": lambda c, a: a.softmax(-1),
    "norm": lambda c, a: F.layer_norm(a, (WIDTH,)),
    "scaled": lambda c, a: a * c.scalar,
    "linear": lambda c, a: F.linear(a, c.unit.weight, c.unit.bias),
    "matmul": lambda c, a: a @ c.unit.weight,
    "state scale": lambda c, a: a * c.unit.scale + c.unit.extra["shift"],
    "branch on state": lambda c, a: a + 1 if c.unit.flag else a.relu(),
    "dropout": lambda c, a: F.dropout(a, 0.4, c.unit.training),
    "noise": lambda c, a: a + torch.rand_like(a),
    "buffer": lambda c, a: a + c.unit.total[0],
    "table": lambda c, a: a + c.unit.extra["table"][1],
    "index": lambda c, a: a[c.rows],
    "index_select": lambda c, a: a.index_select(0, c.rows),
    "gather": lambda c, a: a.gather(1, a.argsort(1)),
    "sort": lambda c, a: a.sort(0).values,
    "cumsum": lambda c, a: a.cumsum(0),
    "cat": lambda c, a: torch.cat([a[1:], a[:1]]),
    "split": lambda c, a: torch.cat(a.split([1, WIDTH - 1], 1)[::-1], 1),
    "stack": lambda c, a: torch.stack(a.unbind(1), 1),
    "flip": lambda c, a: a.flip(1),
    "strided": lambda c, a: torch.cat([a, a], 1)[:, ::2],
    "expand": lambda c, a: a[:, :1].expand(-1, WIDTH),
    "transposed": lambda c, a: a.t().contiguous().t(),
    "view": lambda c, a: a.view(a.shape),
    "round trip": lambda c, a: a.double().mul(1.1).float(),
    "where": lambda c, a: torch.where(c.mask[:, None], a, -0.5),
    "masked": lambda c, a: a.masked_fill(c.mask[:, None], 0.0),
    "constant": lambda c, a: a + torch.tensor(0.75, device=a.device),
    "new": lambda c, a: a + a.new_full((WIDTH,), 0.125),
    "branch on mask": lambda c, a: a * 2 if c.mask.all() else a - 3,
    "read mask": lambda c, a: a * int(c.mask.sum()),
    "held": lambda c, a: a + (c.box["h"] if isinstance(c.box, dict) else c.box.h),
    "read value": lambda c, a: a * (0.5 if float(a.sum()) > 0 else 2.0),
    "same": lambda c, a: a,
    "rows": lambda c, a: a + a.shape[0],
}
BINARY: dict[str, Callable[[Context, Values, Values], Values]] = {
    "add": lambda c, a, b: a + b,
    "mul": lambda c, a, b: a * b,
    "sub": lambda c, a, b: torch.sub(a, b, alpha=2),
    "maximum": lambda c, a, b: torch.maximum(a, b),
    "product": lambda c, a, b: a @ (b.t() @ b),
    "halves": lambda c, a, b: torch.cat([a[:, :2], b[:, 2:]], 1),
    "attention": lambda c, a, b: F.scaled_dot_product_attention(a[None, None], b[None, None], a[None, None])[0, 0],
    "addmm": lambda c, a, b: torch.addmm(a, b, c.unit.weight, beta=0.5),
    "select": lambda c, a, b: torch.where(a > b, a, b * 0.5),
    "scatter": lambda c, a, b: a.scatter(1, b.argsort(1), b),
    "out": lambda c, a, b: torch.add(a, b, out=torch.empty_like(a)),
}


def _first_row(c: Context, a: Values, b: Values) -> None:
    a[:1] = b[:1].clone()


def _column(c: Context, a: Values, b: Values) -> None:
    a[:, 1] = 0.5


def _state_total(c: Context, a: Values, b: Values) -> None:
    c.unit.total.add_(a.detach().sum(0))


def _state_tail(c: Context, a: Values, b: Values) -> None:
    c.unit.tail.mul_(0.5).add_(b.detach().mean() if b.numel() else 1.0)


def _put(c: Context, a: Values) -> None:
    if isinstance(c.box, dict):
        c.box["h"] = a
    else:
        c.box.h = a


def _grow(c: Context, a: Values) -> None:
    log = c.box.setdefault("log", []) if isinstance(c.box, dict) else c.box.__dict__.setdefault("log", [])
    log.append(a)


IN_PLACE: dict[str, Callable[[Context, Values, Values], Any]] = {
    "mul_": lambda c, a, b: a.mul_(0.5),
    "add_": lambda c, a, b: a.add_(b.clone()),
    "copy_": lambda c, a, b: a.copy_(b.clone()),
    "first row": _first_row,
    "column": _column,
    "masked_fill_": lambda c, a, b: (a if 0 not in a.stride() else a.clone()).masked_fill_(c.mask[:, None], 0.25),
    "tail": lambda c, a, b: a[:, 1:].neg_(),
    "index_add_": lambda c, a, b: a.index_add_(0, c.rows, b.clone()),
    "index_put_": lambda c, a, b: (a if 0 not in a.stride() else a.clone()).index_put_((c.rows,), b.clone()),
    "noise_": lambda c, a, b: a.add_(torch.randn_like(a)),
    "total": _state_total,
    "tail of total": _state_tail,
}
EFFECTS: dict[str, Callable[[Context, Values], Any]] = {
    "put": _put,
    "grow": _grow,
    "put twice": lambda c, a: (_put(c, a * 2), _put(c, a)),
    "count on module": lambda c, a: setattr(c.unit, "counter", c.unit.counter + 1),
}
RESULTS: dict[str, Callable[[list[Values], Context], Any]] = {
    "last": lambda v, c: v[-1],
    "tuple": lambda v, c: (v[-1], v[0]),
    "dict": lambda v, c: {"out": v[-1], "rest": [v[-2], v[1], None], "n": c.rows.shape[0]},
    "dataclass": lambda v, c: Box(h=v[-1], n=3),
    "namedtuple": lambda v, c: Point(v[-1], v[-1]),
    "ordered": lambda v, c: collections.OrderedDict(a=v[-1], b=(v[-1].shape, 1.0, True)),
    "views": lambda v, c: [v[-1], v[-1][:, 1:], v[-1].t()],
    "argument view": lambda v, c: (v[0][:, :2], v[-1]),
    "buffer": lambda v, c: (v[-1], c.unit.total),
    "pair": lambda v, c: v[-1].max(1),
    "container": lambda v, c: (c.box, v[-1]),
    "expanded": lambda v, c: v[-1][:, :1].expand(-1, 3),
    "parameter": lambda v, c: (c.unit.weight, v[-1]),
    "nothing": lambda v, c: None,
}


@dataclasses.dataclass(frozen=True)
class Step:
    table: str
    name: str
    left: int
    right: int


EVENTS: dict[str, Callable[[World], Any]] = {
    "other parameter": lambda w: setattr(
        w.unit, "weight", nn.Parameter(torch.randn(WIDTH, WIDTH).to(w.device), requires_grad=False)
    ),
    "data": lambda w: setattr(w.unit.weight, "data", torch.randn(WIDTH, WIDTH).to(w.device)),
    "in place": lambda w: w.unit.weight.data.mul_(0.9),
    "other buffer": lambda w: setattr(w.unit, "total", torch.ones(2, WIDTH, device=w.device)),
    "buffer in place": lambda w: w.unit.total.fill_(0.5),
    "eval": lambda w: w.unit.eval(),
    "train": lambda w: w.unit.train(),
    "scale": lambda w: setattr(w.unit, "scale", w.unit.scale + 0.25),
    "flag": lambda w: setattr(w.unit, "flag", not w.unit.flag),
    "table": lambda w: w.unit.extra.__setitem__("table", torch.ones(3, WIDTH, device=w.device)),
    "shift": lambda w: w.unit.extra.__setitem__("shift", w.unit.extra["shift"] * 2),
    "rows 3": lambda w: setattr(w, "rows", 3),
    "rows 5": lambda w: setattr(w, "rows", 5),
    "rows 0": lambda w: setattr(w, "rows", 0),
    "rows 1": lambda w: setattr(w, "rows", 1),
    "scalar": lambda w: setattr(w, "scalar", w.scalar + 1),
    "scalar type": lambda w: setattr(w, "scalar", 1 if isinstance(w.scalar, float) else 1.0),
    "truth": lambda w: setattr(w, "scalar", True),
    "other mask": lambda w: setattr(w, "holes", not w.holes),
    "drop results": lambda w: w.results.clear(),
    "feed back": lambda w: setattr(w, "feed", not w.feed),
    "new box": lambda w: setattr(w, "fresh_box", True),
    "same twice": lambda w: setattr(w, "second", "same"),
    "overlapping": lambda w: setattr(w, "second", "overlapping"),
    "separate": lambda w: setattr(w, "second", "separate"),
    "expanded": lambda w: setattr(w, "second", "expanded"),
    "strided": lambda w: setattr(w, "second", "strided"),
    "buffer as argument": lambda w: setattr(w, "second", "buffer"),
    "pinned": lambda w: setattr(w, "fixed", not w.fixed),
}


@dataclasses.dataclass
class Body:
    """What a program computes. It leads to its own functions and to nothing of what makes programs, as a person's
    function would: guards would walk all tables with each program.
    """

    steps: tuple[tuple[str, Callable[..., Any], int, int], ...]
    result: Callable[[list[Values], Context], Any]

    def __call__(self, unit: Unit, x: Values, y: Values, box: Any, mask: Values, rows: Values, *, scalar: Any) -> Any:
        context = Context(unit, scalar, mask, box, rows)
        values = [x, y]
        for table, function, left, right in self.steps:
            a, b = values[-1 - left % len(values)], values[-1 - right % len(values)]
            if table == "unary":
                values.append(function(context, a))
            elif table == "binary":
                values.append(function(context, a, b))
            elif table == "in place":
                function(context, a, b)
            else:
                function(context, a)
        values.append((values[-1] * 1.5 + 1).sigmoid())  # enough work for a graph
        return self.result(values, context)


TABLES: dict[str, dict[str, Callable[..., Any]]] = {
    "unary": UNARY,
    "binary": BINARY,
    "in place": IN_PLACE,
    "effect": EFFECTS,
}


@dataclasses.dataclass(frozen=True)
class Program:
    """A function, the way it is called, and what happens between the calls."""

    steps: tuple[Step, ...]
    result: str
    second: str
    box: str
    scalar: Any
    events: tuple[str | None, ...]
    grad: str
    in_place: bool

    @staticmethod
    def strategy() -> st.SearchStrategy[Program]:
        index = st.integers(0, 3)
        usual = (
            [("unary", n) for n in UNARY] * 2
            + [("binary", n) for n in BINARY] * 3
            + [("in place", n) for n in IN_PLACE] * 3
        )
        rare = [("effect", n) for n in ("put", "grow", "put twice")] * 3 + [("effect", "count on module")]
        step = st.builds(lambda which, a, b: Step(*which, a, b), st.sampled_from(usual + rare), index, index)
        return st.builds(
            Program,
            steps=st.lists(step, min_size=2, max_size=6).map(tuple),
            result=st.sampled_from(sorted(RESULTS)),
            second=st.sampled_from(["separate", "separate", "same", "overlapping", "strided", "expanded", "buffer"]),
            box=st.sampled_from(["dict", "dataclass", "plain", "ordered"]),
            scalar=st.sampled_from([2.0, 0.5, 1, True]),
            events=st.lists(st.one_of(st.none(), st.sampled_from(sorted(EVENTS))), min_size=5, max_size=7).map(tuple),
            grad=st.sampled_from(["no_grad", "inference", "enabled"]),
            in_place=st.booleans(),
        )

    def build(self, device: torch.device) -> World:
        unit = Unit(device)
        world = World(
            unit=unit,
            device=device,
            rows=3,
            scalar=self.scalar,
            holes=False,
            results=[],
            feed=False,
            second=self.second,
            fixed=False,
            fresh_box=True,
            box=None,
            seed=0,
            pinned=None,
        )
        steps = tuple((step.table, TABLES[step.table][step.name], step.left, step.right) for step in self.steps)
        body = Body(steps, RESULTS[self.result])

        def function(x: Values, y: Values, box: Any, mask: Values, rows: Values, *, scalar: Any) -> Any:
            return body(unit, x, y, box, mask, rows, scalar=scalar)

        world.function = function
        return world

    def arguments(self, world: World) -> tuple[tuple[Any, ...], dict[str, Any]]:
        world.seed += 1
        random = torch.Generator().manual_seed(world.seed)
        rows, device = world.rows, world.device

        def draw(*shape: int) -> Values:
            return torch.randn(*shape, generator=random).to(device)

        base = draw(rows + 2, WIDTH)
        if world.fixed:
            if world.pinned is None or world.pinned.shape[0] != rows + 2:
                world.pinned = base
            base = world.pinned
        x = base[:rows] if world.second == "overlapping" or world.fixed else base[:rows].clone()
        previous = [
            r for r in world.results if isinstance(r, torch.Tensor) and r.shape == x.shape and r.dtype == x.dtype
        ]
        if world.feed and previous:
            x = previous[-1]
        y = {
            "separate": lambda: draw(rows, WIDTH),
            "same": lambda: x,
            "overlapping": lambda: base[1 : rows + 1],
            "strided": lambda: draw(WIDTH, rows).t(),
            "expanded": lambda: draw(1, WIDTH).expand(rows, WIDTH),
            "buffer": lambda: world.unit.total[:1].expand(rows, WIDTH),
        }[world.second]()
        if world.fresh_box:
            h = draw(rows, WIDTH)
            world.box = {
                "dict": lambda: {"h": h, "k": 1},
                "ordered": lambda: collections.OrderedDict(h=h),
                "dataclass": lambda: Box(h=h),
                "plain": lambda: Plain(h),
            }[self.box]()
            world.fresh_box = self.box != "dataclass"  # one kind of box lives on from call to call
        mask = torch.ones(rows, dtype=torch.bool)
        if world.holes and rows:
            mask[0] = False
        order = torch.arange(rows).flip(0)
        return (x, y, world.box, mask.to(device), order.to(device)), {"scalar": world.scalar}


_MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "enabled": torch.enable_grad,
}


def run_program(program: Program, backend: Backend) -> Twins:
    """Run it eagerly and through Grape; raise AssertionError at the first difference. The twins come back released."""
    with _MODES[program.grad]():
        twins = Twins(lambda: program.build(backend.device), backend, in_place=program.in_place)
        try:
            for event in (None,) * 6 + program.events:
                if event is not None:
                    twins.both(EVENTS[event])
                result = twins.call(program.arguments, keep=len(twins.results) < 3)
                mine, theirs = twins.eager.results, twins.world.results
                if isinstance(result, torch.Tensor):
                    for results, one in zip((mine, theirs), twins.last, strict=True):
                        results.append(one)
                        del results[:-2]
        finally:
            twins.close()
    return twins


def seeded(part: int) -> Callable[[Any], Any]:
    """Makes a repeatable test draw other programs than its siblings; a random run draws its own."""
    return seed(part) if settings.default.derandomize else lambda test: test


def codes(twins: Sequence[Twins]) -> collections.Counter[str]:
    """How many were replayed, and why the others were not."""
    return collections.Counter("replayed" if t.replays else t.refused.code if t.refused else "never" for t in twins)
