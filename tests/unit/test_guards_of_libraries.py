"""What an installed library keeps beside its functions, and goes by: a change of it must be seen."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from grape.runtime.guarding.guards import GuardSet
from grape.runtime.state import tables
from grape.tracing import positions
from tests.property.programs import World
from tests.unit.test_runtime_guards import check

pytestmark = pytest.mark.usefixtures("without_gradients")

LIBRARY = """
import collections, collections.abc, contextvars, os, threading, types, torch
OPTIONS, LIST, NUMBERS, STACK, PAIR = {"scale": 2.0}, [2.0], {1, 2}, [], (2.0,)
ORDERED, OBJECT, LOCAL = collections.OrderedDict(scale=2.0), types.SimpleNamespace(scale=2.0), threading.local()
LOCAL.scale = 2.0
class Settings:
    scale = 2.0
SETTINGS, TABLE = Settings(), {"one": lambda x: x * 2}
class Registry(collections.abc.MutableMapping):
    shared = {"one": lambda x: x * 2}
    def __init__(self): self.own = {}
    def __getitem__(self, name): return self.own[name] if name in self.own else self.shared[name]
    def __setitem__(self, name, value): self.own[name] = value
    def __delitem__(self, name): del self.own[name]
    def __iter__(self): return iter({**self.shared, **self.own})
    def __len__(self): return len({**self.shared, **self.own})
REGISTRY = Registry()
def by_registry(x): return REGISTRY["one"](x)
def by_options(x): return x * OPTIONS["scale"]
def by_get(x): return x * OPTIONS.get("scale")
def by_ordered(x): return x * ORDERED["scale"]
def by_list(x): return x * LIST[0]
def by_numbers(x): return x * len(NUMBERS)
def by_stack(x): return (x * STACK[-1] if STACK else x).tanh()
def by_pair(x): return x * PAIR[0]
def by_object(x): return x * OBJECT.scale
def by_local(x): return x * LOCAL.scale
def by_class(x): return x * Settings.scale
def by_default_of_the_class(x): return x * SETTINGS.scale
def by_table(x): return TABLE["one"](x)
def by_itself(x): return x * by_itself.scale
by_itself.scale = 2.0
def by_another(x): return by_options(x) + 1
VARIABLE = contextvars.ContextVar("scale", default=2.0)
SETTINGS.inner = types.SimpleNamespace(scale=2.0)
def by_variable(x): return x * VARIABLE.get()
def by_environment(x): return x * float(os.environ.get("GUARDED_SCALE", "2"))
def by_inner(x): return x * SETTINGS.inner.scale
def by_default(x, options=OPTIONS): return x * options["scale"]
class Thing:
    def __call__(self, x): return self.scaled(x) + self.once(x)
    def scaled(self, x): return x * OPTIONS["scale"]
    @staticmethod
    def once(x): return x * Settings.scale
thing = Thing()
class Layer(torch.nn.Module):
    table = {"one": torch.tanh}
    def forward(self, x): return self.table["one"](x) * OPTIONS["scale"]
layer = Layer()
"""
CHANGES: dict[str, Callable[[Any], Any]] = {
    "by_options": lambda m: m.OPTIONS.update(scale=3.0),
    "by_get": lambda m: m.OPTIONS.update(scale=3.0),
    "by_ordered": lambda m: m.ORDERED.update(scale=3.0),
    "by_list": lambda m: m.LIST.__setitem__(0, 3.0),
    "by_numbers": lambda m: m.NUMBERS.add(3),
    "by_stack": lambda m: m.STACK.append(3.0),
    "by_pair": lambda m: setattr(m, "PAIR", (3.0,)),
    "by_object": lambda m: setattr(m.OBJECT, "scale", 3.0),
    "by_local": lambda m: setattr(m.LOCAL, "scale", 3.0),
    "by_class": lambda m: setattr(m.Settings, "scale", 3.0),
    "by_default_of_the_class": lambda m: setattr(m.SETTINGS, "scale", 3.0),
    "by_table": lambda m: m.TABLE.update(one=lambda x: x * 3),
    "by_itself": lambda m: setattr(m.by_itself, "scale", 3.0),
    "by_another": lambda m: m.OPTIONS.update(scale=3.0),
    "by_registry": lambda m: m.REGISTRY.update(one=lambda x: x * 3),
    "by_variable": lambda m: m.VARIABLE.set(3.0),
    "by_environment": lambda m: os.environ.update(GUARDED_SCALE="3"),
    "by_inner": lambda m: setattr(m.SETTINGS.inner, "scale", 3.0),
    "by_default": lambda m: m.OPTIONS.update(scale=3.0),
    "thing": lambda m: m.OPTIONS.update(scale=3.0),
    "layer": lambda m: m.Layer.table.update(one=torch.relu),
}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Makes the library, installed as torch is, for each world."""
    file = f"{next(root for root in positions._ROOTS if 'packages' in root)}guarded_library.py"

    def make() -> types.ModuleType:
        module = types.ModuleType("guarded_library")
        module.__file__ = file
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(LIBRARY, file, "exec"), vars(module))
        return module

    monkeypatch.setenv("GUARDED_SCALE", "2")
    yield make


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_library_goes_by(name: str, library: Callable[[], Any]) -> None:
    def build() -> World:
        module = library()
        called = getattr(module, name)
        return World(function=lambda x: called(x.tanh()) + 1, library=module)

    check(build, lambda w: CHANGES[name](w.library))


@pytest.mark.parametrize("table", ["TABLE", "REGISTRY.own", "Registry.shared"])
def test_what_a_function_reads_that_was_registered(table: str, library: Callable[[], Any]) -> None:
    def build() -> World:
        module, settings = library(), {"scale": 2.0}
        owner, _, name = f"module.{table}".rpartition(".")
        getattr(eval(owner), name)["one"] = lambda x: x * settings["scale"]
        called = module.by_table if table == "TABLE" else module.by_registry
        return World(function=lambda x: called(x.tanh()) + 1, settings=settings)

    check(build, lambda w: w.settings.update(scale=3.0))


def test_a_dict_in_the_place_of_the_environment(library: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    called = library().by_environment
    guards = GuardSet(lambda x: called(x))
    assert guards.holds()
    os.environ["GUARDED_SCALE"] = "3"
    assert not guards.holds()


def test_what_fills_an_empty_table_where_no_write_of_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with Python 3.12 and later."""
    monkeypatch.setattr(tables, "dict_version", lambda table: 1)
    table: dict[object, object] = {}
    before = tables.writes_of((table,))
    table.update(one=len)
    assert tables.writes_of((table,)) != before


@pytest.mark.parametrize("name", ["by_options", "by_object", "by_environment"])
def test_nobody_puts_settings_back(name: str, library: Callable[[], Any]) -> None:
    """Libraries may make them when they are first called."""
    module = library()
    called = getattr(module, name)
    kept = GuardSet(lambda x: called(x)).kept()
    CHANGES[name](module)
    kept.put_back()
    assert called(torch.ones(())).item() == 3.0
