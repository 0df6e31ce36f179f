"""Each guard by name: state that changes between two calls must be seen, whatever it is kept in."""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch import nn
from torch.nn import functional as F

import grape
from grape.runtime.guarding.guards import GuardSet
from grape.runtime.state import is_defined_again
from grape.runtime.state.names import TooLarge
from tests.property.programs import Twins, World

pytestmark = pytest.mark.usefixtures("without_gradients")


def x_of(world: World) -> torch.Tensor:
    world.seed = getattr(world, "seed", 0) + 1
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(world.seed))


def one(world: World) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (x_of(world),), {}


def own_globals(function: types.FunctionType, **values: Any) -> types.FunctionType:
    """The function with globals of its own, so that the twins do not share them."""
    code = function.__code__
    return types.FunctionType(code, {"__builtins__": __builtins__, "torch": torch, "F": F, **values}, code.co_name)


def check(
    build: Callable[[], World], change: Callable[[World], Any], call: Any = one, *, replays_again: bool = True
) -> Twins:
    """Replay; change something in both worlds; the results must go on agreeing, and graphs be made again."""
    twins = Twins(build)
    twins.warm(call)
    twins.both(change)
    twins.calls_of(call, 2)
    if replays_again:
        twins.warm(call, limit=12)
    twins.close()
    return twins


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("mean", torch.randn(4))
        self.scale = 2.0
        self.mode = "plain"
        self.options = {"shift": 1.0}
        self.weights = [torch.randn(4), torch.randn(4)]
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.first(x) - self.mean) * self.scale + self.options["shift"]
        return x * self.weights[0] if self.mode == "plain" else x.relu() + self.weights[1]


class Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


def net_world() -> World:
    net = Net()
    return World(function=net, net=net)


NET_CHANGES: dict[str, Callable[[World], Any]] = {
    "parameter replaced": lambda w: setattr(w.net.first, "weight", nn.Parameter(torch.randn(4, 4))),
    "parameter's data swapped": lambda w: setattr(w.net.first.weight, "data", torch.randn(4, 4)),
    "parameter written in place": lambda w: w.net.first.weight.mul_(2),
    "state dict loaded": lambda w: w.net.load_state_dict({k: v + 1 for k, v in w.net.state_dict().items()}),
    "buffer replaced": lambda w: setattr(w.net, "mean", torch.randn(4)),
    "train": lambda w: w.net.train(),
    "train of a part": lambda w: w.net.drop.train(),
    "attribute of self": lambda w: setattr(w.net, "scale", 3.0),
    "attribute to minus zero": lambda w: setattr(w.net, "scale", -0.0),
    "attribute to another type": lambda w: setattr(w.net, "scale", 2),
    "branch": lambda w: setattr(w.net, "mode", "other"),
    "item of a dict": lambda w: w.net.options.update(shift=2.0),
    "item of a list": lambda w: w.net.weights.__setitem__(0, torch.randn(4)),
    "part replaced": lambda w: setattr(w.net, "first", nn.Linear(4, 4)),
    "part deleted and set": lambda w: (delattr(w.net, "scale"), setattr(w.net, "scale", 5.0)),
    "class of a part": lambda w: setattr(w.net.first, "__class__", Doubled),
    "double": lambda w: (w.net.options.clear(), w.net.options.update(shift=4.0)),
    "attributes replaced": lambda w: setattr(w.net, "__dict__", {**vars(w.net), "scale": 5.0}),
    "attributes of a part replaced": lambda w: setattr(
        w.net.first, "__dict__", {**vars(w.net.first), "_parameters": dict(nn.Linear(4, 4)._parameters)}
    ),
    "buffer negated where it lies": lambda w: setattr(w.net.mean, "data", torch._neg_view(w.net.mean.data)),
}


@pytest.mark.parametrize("change", NET_CHANGES)
def test_a_module_that_changed(change: str) -> None:
    check(net_world, NET_CHANGES[change])


def test_a_hook_registered_later_runs() -> None:
    def register(world: World) -> None:
        world.seen = []
        world.net.first.register_forward_hook(lambda module, args, out: world.seen.append(len(args)))

    check(net_world, register, replays_again=False)


def test_a_hook_on_all_modules_runs() -> None:
    handles = []

    def register(world: World) -> None:
        world.seen = []
        net = world.net
        handles.append(
            nn.modules.module.register_module_forward_hook(lambda m, a, out: world.seen.append(1) if m is net else None)
        )

    try:
        check(net_world, register, replays_again=False)
    finally:
        for handle in handles:
            handle.remove()


def test_a_hook_that_was_there_first() -> None:
    def build() -> World:
        world = net_world()
        world.seen = []
        world.net.first.register_forward_hook(lambda module, args, out: world.seen.append(1))
        return world

    twins = Twins(build)
    twins.calls_of(one, 6)
    assert twins.refused.code == "GR404"


def two_layers() -> World:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    return World(function=net, net=net)


@pytest.mark.parametrize("calls", range(1, 5))
def test_another_head_before_the_first_graph_is_no_hidden_state(calls: int) -> None:
    twins = Twins(two_layers)
    twins.calls_of(one, calls)
    twins.both(lambda world: world.net.__setitem__(2, nn.Linear(4, 3)))
    twins.warm(one)


def test_a_parameter_that_is_conjugated_where_it_lies() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.randn(4, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.softmax(torch.view_as_real(self.by * x).sum(-1).relu(), -1)

    def build() -> World:
        net = Turned()
        return World(function=net, net=net)

    check(build, lambda w: setattr(w.net.by, "data", w.net.by.data.conj()))


def test_another_head_at_each_call_is_said_to_be_that() -> None:
    twins = Twins(two_layers)
    for width in range(1, 8):
        twins.both(lambda world, width=width: world.net.__setitem__(2, nn.Linear(4, width)))
        twins.call(one)
    why = "the tensors that it reads beside its arguments have other shapes or dtypes at each call"
    assert (twins.refused.code, twins.refused.why) == ("GR403", why)


def test_code_that_asks_who_needs_a_gradient_where_none_is_recorded() -> None:
    class Asks(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.softmax(super().forward(x).relu(), -1) + (1 if self.weight.requires_grad else 2)

    def build() -> World:
        net = Asks(4, 4)
        return World(function=net, net=net)

    check(build, lambda w: w.net.weight.requires_grad_(False))


def test_parameters_that_start_to_need_gradients() -> None:
    def build() -> World:
        world = net_world()
        world.net.requires_grad_(False)
        return world

    with torch.enable_grad():
        check(build, lambda w: w.net.requires_grad_(True), replays_again=False)


@pytest.mark.parametrize(
    "enter",
    [
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        torch.inference_mode,
        torch.enable_grad,
    ],
)
def test_modes(enter: Callable[[], Any]) -> None:
    twins = Twins(net_world)
    twins.warm(one)
    with enter():
        twins.calls_of(one, 3)
    twins.calls_of(one, 2)


def test_default_dtype() -> None:
    def build() -> World:
        return World(function=lambda x: x * 2 + torch.ones(4) + torch.full((4,), 0.1).sum())

    twins = Twins(build)
    twins.warm(one)
    torch.set_default_dtype(torch.float64)
    try:
        twins.calls_of(one, 4)
    finally:
        torch.set_default_dtype(torch.float32)
    twins.calls_of(one, 2)


# -- what code can name ----------------------------------------------------------------------------------------------


def uses_globals(x: torch.Tensor) -> torch.Tensor:
    return (x + table).tanh() * scale + max(1, 2)  # noqa: F821


def globals_world() -> World:
    function = own_globals(uses_globals, table=torch.ones(4), scale=2.0)
    return World(function=function, names=function.__globals__)


GLOBAL_CHANGES: dict[str, Callable[[World], Any]] = {
    "tensor rebound": lambda w: w.names.update(table=torch.randn(4)),
    "tensor in place": lambda w: w.names["table"].mul_(3),
    "scalar changed": lambda w: w.names.update(scale=3.0),
    "builtin shadowed": lambda w: w.names.update(max=min),
    "code replaced": lambda w: setattr(w.function, "__code__", own_globals(lambda x: (x * 2).sin() + 1).__code__),
}


@pytest.mark.parametrize("change", GLOBAL_CHANGES)
def test_globals(change: str) -> None:
    def compare_names(world: World) -> None:
        GLOBAL_CHANGES[change](world)

    def build() -> World:
        world = globals_world()
        world.names = Hidden(world.names)
        return world

    check(build, compare_names)


class Hidden(dict[str, Any]):
    """Globals that are not compared between the twins; a view of the real ones."""

    def __init__(self, real: dict[str, Any]) -> None:
        super().__init__()
        self._real = lambda: real

    def update(self, **values: Any) -> None:  # type: ignore[override]
        self._real().update(values)

    def __getitem__(self, name: str) -> Any:
        return self._real()[name]


def _closure() -> World:
    scale, table = 2.0, torch.ones(4)

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x + table).tanh() * scale

    def change(to: Any) -> None:
        nonlocal scale
        scale = to

    return World(function=function, change=change)


def test_closure_cell() -> None:
    check(_closure, lambda w: w.change(3.0))


def _holder_world(holder: Any, read: Callable[[Any], Any]) -> Callable[[], World]:
    """A region that reads `read(holder)`, a Python number, from an object that only its code names."""

    def build() -> World:
        made = holder()

        def function(x: torch.Tensor) -> torch.Tensor:
            return (x * read(made)).tanh() + 1

        return World(function=function, holder=made)

    return build


class Base:
    scale = 2.0

    @property
    def value(self) -> float:
        return self.scale

    @classmethod
    def of_class(cls) -> float:
        return cls.scale


class Derived(Base):
    pass


class Slotted:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 2.0


@dataclasses.dataclass(slots=True)
class SlottedData:
    scale: float = 2.0


class Attributed(dict[str, Any]):
    scale = 2.0


def _fresh_class() -> type:
    return type("Fresh", (Derived,), {"scale": 2.0, "__module__": __name__})


def _fresh_metaclass() -> Any:
    return type("Meta", (type,), {"scale": 2.0, "__module__": __name__})


def _behind(view: Any) -> Any:
    """The dict that nothing but `view` leads to."""
    return next(thing for thing in gc.get_referents(view) if isinstance(thing, dict))


def _two() -> float:
    return 2.0


def _three() -> float:
    return 3.0


def _dispatched() -> Any:
    @functools.singledispatch
    def function(number: object) -> float:
        return 2.0

    return function


def _module() -> types.ModuleType:
    module = types.ModuleType("settings")
    module.__file__ = "/home/me/settings.py"
    module.scale = 2.0  # type: ignore[attr-defined]
    return module


HOLDERS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "class attribute": (_fresh_class, lambda h: h.scale, lambda h: setattr(h, "scale", 3.0)),
    "attribute of an instance's class": (
        lambda: _fresh_class()(),
        lambda h: h.scale,
        lambda h: setattr(type(h), "scale", 3.0),
    ),
    "property": (lambda: _fresh_class()(), lambda h: h.value, lambda h: setattr(type(h), "scale", 3.0)),
    "classmethod": (lambda: _fresh_class()(), lambda h: h.of_class(), lambda h: setattr(type(h), "scale", 3.0)),
    "instance over class": (lambda: _fresh_class()(), lambda h: h.scale, lambda h: setattr(h, "scale", 3.0)),
    "slots": (Slotted, lambda h: h.scale, lambda h: setattr(h, "scale", 3.0)),
    "dataclass with slots": (SlottedData, lambda h: h.scale, lambda h: setattr(h, "scale", 3.0)),
    "dict with attributes": (Attributed, lambda h: h.scale, lambda h: setattr(h, "scale", 3.0)),
    "deque": (lambda: collections.deque([2.0]), lambda h: h[0], lambda h: h.__setitem__(0, 3.0)),
    "key of a dict": (
        lambda: {2: None, 5: 1},
        lambda h: next(k for k, v in h.items() if v is None),
        lambda h: (h.clear(), h.update({3: None, 5: 1})),
    ),
    "set": (lambda: {2}, lambda h: sum(h), lambda h: (h.clear(), h.add(3))),
    "set, type of the item": (
        lambda: {1},
        lambda h: 2 if type(min(h)) is int else 3,
        lambda h: (h.clear(), h.add(True)),
    ),
    "partial": (
        lambda: functools.partial(lambda k, a: k["scale"] * a, {"scale": 2.0}),
        lambda h: h(1),
        lambda h: h.args[0].update(scale=3.0),
    ),
    "partial, made anew in place": (
        lambda: functools.partial(lambda scale: scale, 2.0),
        lambda h: h(),
        lambda h: h.__setstate__((h.func, (3.0,), {}, {})),
    ),
    "factory of a dict": (
        lambda: collections.defaultdict(_two),
        lambda h: h.default_factory(),
        lambda h: setattr(h, "default_factory", _three),
    ),
    "no factory of a dict": (
        lambda: collections.defaultdict(None),
        lambda h: 2.0 if h.default_factory is None else h.default_factory(),
        lambda h: setattr(h, "default_factory", _three),
    ),
    "nested": (
        lambda: {"a": [types.SimpleNamespace(b=(types.SimpleNamespace(scale=2.0),))]},
        lambda h: h["a"][0].b[0].scale,
        lambda h: setattr(h["a"][0].b[0], "scale", 3.0),
    ),
    "mapping proxy": (
        lambda: types.MappingProxyType({"scale": 2.0}),
        lambda h: h["scale"],
        lambda h: _behind(h).update(scale=3.0),
    ),
    "values of a dict": (
        lambda: {"scale": 2.0}.values(),
        lambda h: sum(h),
        lambda h: _behind(h).update(scale=3.0),
    ),
    "keys of an ordered dict": (
        lambda: collections.OrderedDict({2: 0}).keys(),
        lambda h: sum(h),
        lambda h: _behind(h).update({3: 0}),
    ),
    "method of a dict": (
        lambda: {"scale": 2.0}.get,
        lambda h: h("scale"),
        lambda h: h.__self__.update(scale=3.0),
    ),
    "operator of a list": (
        lambda: [1].__len__,
        lambda h: h(),
        lambda h: h.__self__.append(1),
    ),
    "function by type": (
        lambda: _dispatched(),
        lambda h: h(1),
        lambda h: h.register(int, lambda number: 3.0),
    ),
    "class attribute of a metaclass": (
        lambda: _fresh_metaclass()("Fresh", (), {"__module__": __name__}),
        lambda h: h.scale,
        lambda h: setattr(type(h), "scale", 3.0),
    ),
    "bytearray": (lambda: bytearray(b"2"), lambda h: h[0], lambda h: h.__setitem__(0, 9)),
}


OPAQUE = frozenset(
    {
        "mapping proxy",
        "values of a dict",
        "keys of an ordered dict",
        "function by type",
        "class attribute of a metaclass",
        "bytearray",
    }
)
"""Holders that nobody can look into, or that nobody should have to."""


@pytest.mark.parametrize("holder", [name for name in HOLDERS if name not in OPAQUE])
def test_a_number_kept_in(holder: str) -> None:
    make, read, change = HOLDERS[holder]
    check(_holder_world(make, read), lambda w: change(w.holder))


def is_refused(build: Callable[[], World], change: Callable[[World], Any]) -> str:
    """Why; the results agree before and after the change."""
    twins = Twins(build)
    twins.calls_of(one, 6)
    twins.both(change)
    twins.calls_of(one, 4)
    assert twins.refused is not None and twins.refused.code == "GR405" and not twins.replays
    why: str = twins.refused.why
    twins.close()
    return why


@pytest.mark.parametrize("holder", sorted(OPAQUE))
def test_a_number_kept_where_nobody_looks(holder: str) -> None:
    make, read, change = HOLDERS[holder]
    assert is_refused(_holder_world(make, read), lambda w: change(w.holder))


def test_minus_zero_is_not_zero() -> None:
    def build() -> World:
        holder = types.SimpleNamespace(scale=0.0)
        return World(function=lambda x: (x.abs() + 1).tanh() * holder.scale, holder=holder)

    check(build, lambda w: setattr(w.holder, "scale", -0.0))


def test_a_number_kept_in_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    check(_holder_world(lambda: numpy.array([2.0]), lambda h: float(h[0])), lambda w: w.holder.__setitem__(0, 3.0))


def test_a_number_behind_a_weak_reference() -> None:
    def build() -> World:
        owner = Base()
        reference = weakref.ref(owner)
        return World(function=lambda x: (x * reference().scale).tanh() + 1, owner=owner)  # type: ignore[union-attr]

    assert is_refused(build, lambda w: setattr(w.owner, "scale", 3.0))


def test_a_number_of_an_imported_module() -> None:
    def uses_module(x: torch.Tensor) -> torch.Tensor:
        return (x * settings.scale).tanh() + 1  # type: ignore[name-defined] # noqa: F821

    def build() -> World:
        module = _module()
        return World(function=own_globals(uses_module, settings=module), module=module)

    check(build, lambda w: setattr(w.module, "scale", 3.0))


OF_MODULES: dict[str, tuple[Callable[[Any], float], Callable[[Any], None]]] = {
    "what it makes": (lambda settings: settings.made, lambda module: setattr(module, "behind", 3.0)),
    "who makes it": (lambda settings: settings.made, lambda module: setattr(module, "__getattr__", lambda name: 3.0)),
    "a name that it has now": (
        lambda settings: 2.0 if not hasattr(settings, "late") else settings.late,
        lambda module: setattr(module, "late", 3.0),
    ),
    "who makes one that is asked for": (
        lambda settings: getattr(settings, "made", 1.0),
        lambda module: delattr(module, "__getattr__"),
    ),
}
"""What code reads of an imported module, and what changes that."""


@pytest.mark.parametrize("what", OF_MODULES)
def test_an_attribute_that_a_module_does_not_have(what: str) -> None:
    def uses_module(x: torch.Tensor) -> torch.Tensor:
        return (x * read(settings)).tanh() + 1  # type: ignore[name-defined] # noqa: F821

    def made(name: str) -> float:
        if name != "made":
            raise AttributeError(name)
        return behind  # type: ignore[name-defined, no-any-return] # noqa: F821

    def build() -> World:
        module: Any = _module()
        module.behind = 2.0
        module.__getattr__ = types.FunctionType(made.__code__, vars(module))
        return World(function=own_globals(uses_module, settings=module, read=OF_MODULES[what][0]), module=module)

    check(build, lambda w: OF_MODULES[what][1](w.module))


def test_a_function_of_a_library_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins(lambda: World(function=lambda x: F.gelu(x).tanh() + 1))
    twins.warm(one)
    monkeypatch.setattr(F, "gelu", torch.sigmoid)
    twins.calls_of(one, 2)


def test_code_without_a_file() -> None:
    def build() -> World:
        names: dict[str, Any] = {"scale": 2.0}
        exec("def function(x):\n return (x * scale).tanh() + 1", names)
        return World(function=names["function"], change=names.update)

    check(build, lambda w: w.change(scale=3.0))


@pytest.mark.parametrize("expression", ["globals()['scale']", "eval('scale')", "own.names(globals())"])
def test_code_that_reads_names_it_does_not_mention_is_refused(expression: str) -> None:
    names: dict[str, Any] = {"scale": 2.0, "own": types.SimpleNamespace(names=lambda known: known["scale"])}
    exec(f"def function(x):\n return x.tanh() * {expression}", names)
    graphed = grape.graph(names["function"])
    for call in range(12):
        names["scale"] = 2.0 + call // 8
        assert torch.equal(graphed(torch.ones(4)), names["function"](torch.ones(4)))
    evidence = graphed.evidence()
    assert evidence is not None and evidence.refused is not None
    graphed.release()


class Unreadable:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class Unsized(dict[str, Any]):
    def __len__(self) -> int:
        raise RuntimeError("__len__")


class Nameless(float):
    def __repr__(self) -> str:
        raise RuntimeError("__repr__")


ODD: dict[str, Callable[[], Any]] = {
    "attributes that raise": Unreadable,
    "a length that raises": lambda: Unsized(a=1),
    "a number that cannot be printed": lambda: Nameless(1.0),
    "a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2)]),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("calls", [0, 8], ids=["from the beginning", "later"])
def test_what_cannot_be_compared_breaks_no_call(name: str, calls: int) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.tanh() + len(held)

    held: list[Any] = []
    graphed = grape.graph(function)
    for call in range(16):
        if call == calls:
            held = [ODD[name]()]
        assert torch.equal(graphed(torch.ones(4)), torch.ones(4).tanh() + len(held))
    graphed.release()


def test_attributes_of_a_function() -> None:
    def build() -> World:
        def function(x: torch.Tensor) -> torch.Tensor:
            return (x * function.scale).tanh() + 1  # type: ignore[attr-defined]

        function.scale = 2.0  # type: ignore[attr-defined]
        return World(function=function)

    check(build, lambda w: setattr(w.function, "scale", 3.0))


def test_a_partial_as_the_region() -> None:
    def build() -> World:
        options = {"scale": 2.0}
        return World(function=functools.partial(lambda o, x: (x * o["scale"]).tanh() + 1, options), options=options)

    twins = Twins(build)
    del twins.eager.options, twins.world.options
    for w in (twins.eager, twins.world):
        vars(w)["_options"] = None
    twins.warm(one)
    twins.both(lambda w: w.function.args[0].update(scale=3.0))
    twins.calls_of(one, 3)


def test_a_tensor_that_cannot_be_found_is_refused() -> None:
    hidden = iter(lambda: torch.ones(4), None)
    twins = Twins(lambda: World(function=lambda x: (x + next(hidden)).tanh() * 2))
    twins.calls_of(one, 6)
    assert twins.replays <= 6  # whatever is decided, the results agree


# -- what comes as an argument ---------------------------------------------------------------------------------------


def with_argument(make: Callable[[], Any], read: Callable[[Any, Any], Any], change: Callable[[Any], Any]) -> None:
    def call(world: World) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (x_of(world), world.argument), {}

    check(
        lambda: World(function=lambda x, a: read(x, a).tanh() + 1, argument=make()), lambda w: change(w.argument), call
    )


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def _with_state() -> Any:
    def act(x: torch.Tensor) -> torch.Tensor:
        return x * act.scale  # type: ignore[attr-defined]

    act.scale = 2.0  # type: ignore[attr-defined]
    return act


ARGUMENTS: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "module in train": (lambda: nn.Dropout(0.5), lambda x, a: a(x), lambda a: a.eval()),
    "module's attribute": (Scaled, lambda x, a: a(x), lambda a: setattr(a, "scale", 3.0)),
    "module's parameters": (
        lambda: nn.Linear(4, 4),
        lambda x, a: a(x),
        lambda a: setattr(a.weight, "data", a.weight * 2),
    ),
    "function's attribute": (_with_state, lambda x, a: a(x), lambda a: setattr(a, "scale", 3.0)),
    "class attribute of an object": (
        lambda: _fresh_class()(),
        lambda x, a: x * a.scale,
        lambda a: setattr(type(a), "scale", 3.0),
    ),
    "class": (_fresh_class, lambda x, a: x * a.scale, lambda a: setattr(a, "scale", 3.0)),
    "bound method": (lambda: Base().__class__.of_class, lambda x, a: x * a(), lambda a: None),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_with_state(name: str) -> None:
    with_argument(*ARGUMENTS[name])


def inner(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2


def other_inner(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 3


def calls_inner(x: torch.Tensor) -> Any:
    return helper(x) + 1  # type: ignore[name-defined]  # noqa: F821


def helped_world() -> World:
    function = own_globals(calls_inner)
    function.__globals__["helper"] = _defined(function, inner)
    return World(function=function)


def _defined(function: types.FunctionType, body: types.FunctionType, *defaults: Any) -> types.FunctionType:
    """What `def helper` makes where `function` finds it."""
    return types.FunctionType(body.__code__, function.__globals__, "helper", defaults or None)


def _define(body: Any, *defaults: Any) -> Callable[[World], None]:
    def define(world: World) -> None:
        world.function.__globals__["helper"] = _defined(world.function, body, *defaults)

    return define


def _of_helper(act: Callable[[Any], None]) -> Callable[[World], None]:
    return lambda world: act(world.function.__globals__["helper"])


def test_a_function_that_is_defined_again_as_it_was_keeps_its_graphs() -> None:
    twins = Twins(helped_world)
    twins.warm(one)
    region = twins.graphed._region
    assert region is not None
    for _ in range(3):
        captured = len(region.captures.costs.durations_ms)
        twins.both(_define(inner))
        replays = region.replays
        twins.calls_of(one, 4)
        assert len(region.captures.costs.durations_ms) == captured and region.replays > replays
    twins.close()


def by_default(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return torch.tanh(x) * by


CHANGES_AFTER_DEFINITION: dict[str, Callable[[World], None]] = {
    "other code by then": _define(other_inner),
    "code of the new one": _of_helper(lambda f: setattr(f, "__code__", other_inner.__code__)),
    "other arguments": _define(by_default, 4.0),
    "something else that is called": lambda w: w.function.__globals__.update(helper=nn.Tanh()),
}


@pytest.mark.parametrize("change", CHANGES_AFTER_DEFINITION)
def test_a_function_that_was_defined_again_is_guarded_like_the_first(change: str) -> None:
    twins = Twins(helped_world)
    twins.warm(one)
    twins.both(_define(inner))
    twins.calls_of(one, 3)
    twins.both(CHANGES_AFTER_DEFINITION[change])
    twins.calls_of(one, 3)
    twins.close()


def looks_inner_up(x: torch.Tensor) -> Any:
    known = place and helper in place  # type: ignore[name-defined]  # noqa: F821
    return helper(x) + (1 if known else 2)  # type: ignore[name-defined]  # noqa: F821


PLACES: dict[str, Callable[[Any], Any]] = {
    "keys": lambda f: {f: 1.0},
    "keys that are tuples": lambda f: {f: 1.0, (f, 2): 2.0},
    "a set": lambda f: {f},
    "a list": lambda f: [f],
    "a tuple": lambda f: (f,),
    "a deque": lambda f: collections.deque([f]),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_function_that_is_looked_up_cannot_be_defined_again(name: str) -> None:
    """What does the same is another object still, found nowhere."""

    def build() -> World:
        function = own_globals(looks_inner_up)
        helper = function.__globals__["helper"] = _defined(function, inner)
        function.__globals__["place"] = PLACES[name](helper)
        return World(function=function)

    twins = Twins(build)
    for _ in range(8):
        twins.calls_of(one, 1)
    twins.both(_define(inner))
    twins.calls_of(one, 4)
    twins.close()


def test_a_twin_that_was_looked_up_is_not_the_same_function() -> None:
    def build() -> World:
        function = own_globals(looks_inner_up)
        function.__globals__["helper"] = _defined(function, inner)
        function.__globals__["place"] = {_defined(function, inner): 1.0}
        return World(function=function)

    twins = Twins(build)
    twins.warm(one)
    twins.both(lambda world: world.function.__globals__.update(helper=next(iter(world.function.__globals__["place"]))))
    twins.calls_of(one, 4)
    twins.close()


def returns_inner(x: torch.Tensor) -> Any:
    return helper(x), helper  # type: ignore[name-defined]  # noqa: F821


def test_a_function_that_is_given_back_is_the_one_of_now() -> None:
    function = own_globals(returns_inner)
    graphed = grape.graph(function)
    for number in range(24):
        if number % 8 == 0:
            function.__globals__["helper"] = _defined(function, inner)
        assert graphed(torch.ones(3, 4))[1] is function.__globals__["helper"]
    graphed.release()


def test_defaults_and_attributes_make_it_another_function() -> None:
    plain, codes = own_globals(inner), own_globals(inner)
    again = types.FunctionType(inner.__code__, plain.__globals__, "inner")
    assert is_defined_again(again, plain, [(plain, inner.__code__)])
    assert not is_defined_again(codes, plain, [(plain, inner.__code__)]), "it has other globals"
    again.calls = 0  # type: ignore[attr-defined]
    assert not is_defined_again(again, plain, [(plain, inner.__code__)])
    defaults = types.FunctionType(inner.__code__, plain.__globals__, "inner", (1,))
    assert not is_defined_again(defaults, plain, [(plain, inner.__code__)])
    assert not is_defined_again(plain, plain, []), "nobody watches its code"


def calls_repeatedly(x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = torch.tanh(operator(x))  # type: ignore[name-defined]  # noqa: F821
    return x


@pytest.mark.parametrize("how", ["packet", "overload", "definition"])
def test_an_operator_that_was_never_called_before(how: str) -> None:
    """torch notes at an operator how it is dispatched, and which overloads were asked for."""
    definition = torch.library.custom_op(
        f"grape_guards::{how}", lambda x: x * 1.5, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    definition.register_fake(torch.empty_like)
    packet = getattr(torch.ops.grape_guards, how)
    operator = {"packet": packet, "overload": packet.default, "definition": definition}[how]
    graphed = grape.graph(own_globals(calls_repeatedly, operator=operator))
    for _ in range(8):
        graphed(torch.ones(3, 4))
    evidence = graphed.evidence()
    assert evidence is not None and evidence.refused is None
    graphed.release()


def test_a_kernel_in_python_is_guarded() -> None:
    with torch.library._scoped_library("grape_guards", "FRAGMENT") as library:
        library.define("kernel(Tensor x) -> Tensor")
        library.impl("kernel", lambda x: x * 1.5, "CPU")
        operator = torch.ops.grape_guards.kernel.default
        kernel = own_globals(scales, scale=2.0)
        operator.py_impl(torch._C.DispatchKey.CPU)(kernel)
        graphs = grape.runtime.state.Reach((own_globals(calls_operator, operator=operator),))
        assert any(function is kernel for function, _ in graphs.codes)


@pytest.mark.parametrize("how", ["definition", "packet", "looked up"])
def test_what_an_operator_in_python_reads_is_guarded(how: str) -> None:
    kernel = own_globals(scales, scale=2.0)
    name = f"grape_guards::reads_{how.replace(' ', '_')}"
    definition = torch.library.custom_op(name, kernel, mutates_args=(), schema="(Tensor x) -> Tensor")
    definition.register_fake(torch.empty_like)
    packet = getattr(torch.ops.grape_guards, name.removeprefix("grape_guards::"))
    function = own_globals(calls_operator, operator=packet if how == "packet" else definition)
    if how == "looked up":
        function = own_globals(looks_operator_up)
    function(torch.ones(2))
    guards = GuardSet(function, ())
    assert guards.holds()
    kernel.__globals__["scale"] = 3.0
    assert not guards.holds()


def scales(x: torch.Tensor) -> torch.Tensor:
    return x * scale  # type: ignore[name-defined,no-any-return]  # noqa: F821


def calls_operator(x: torch.Tensor) -> Any:
    return operator(x)  # type: ignore[name-defined]  # noqa: F821


def looks_operator_up(x: torch.Tensor) -> Any:
    return torch.ops.grape_guards.reads_looked_up(x)


@dataclasses.dataclass(frozen=True)
class _Settings:
    load: float = 2.0
    seed: int = 3


def test_names_of_libraries_are_told_from_the_persons_own() -> None:
    """`settings.load` is no `torch.load`; and nobody asks for the hash or the representation of the settings."""
    settings = _Settings()

    def plain(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * settings.load) + getattr(settings, "seed", 0)

    def seeds(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * torch.seed() * settings.load

    def whole(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * getattr(torch, "seed")()  # noqa: B009

    guards = GuardSet(plain)
    assert guards.holds()
    for function in (seeds, whole):
        with pytest.raises(TooLarge, match=r"torch\.seed"):
            GuardSet(function)
