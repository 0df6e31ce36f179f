"""Grape's function modes change no way that torch takes."""

from __future__ import annotations

import importlib
import importlib.machinery
import operator
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch
import torch._dynamo.mutation_guard
from torch import nn, overrides
from torch.overrides import TorchFunctionMode

import grape
from grape.tracing import COMPILED, PositionFinder, Tracer, UnseenMode, when_imported
from grape.tracing.tracer import record
from tests.property.programs import Twins, World

torch._dynamo.mutation_guard.install_generation_tagging_init()  # the first compilation does it, for good


class Plain(TorchFunctionMode):
    """A mode of the person's."""


class Marked(torch.Tensor):
    """A class that overrides functions."""


def attention() -> nn.Module:
    return nn.MultiheadAttention(8, 2, batch_first=True).eval()


def encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()


def called(module: nn.Module, x: torch.Tensor) -> Any:
    return module(x, x, x, need_weights=False)[0] if isinstance(module, nn.MultiheadAttention) else module(x)


@pytest.mark.parametrize(
    ("make", "operator"),
    [
        (attention, "aten._native_multi_head_attention.default"),
        (encoder_layer, "aten._transformer_encoder_layer_fwd.default"),
    ],
)
def test_a_traced_call_takes_the_way_of_the_plain_one(make: Callable[[], nn.Module], operator: str) -> None:
    module, x = make(), torch.randn(2, 5, 8)
    with torch.no_grad():
        expected = called(module, x)
        tracer = Tracer(PositionFinder())
        result, call, _ = record(tracer, torch.device("cpu"), [x], lambda: called(module, x))
    assert operator in [op.name for op in call.trace.ops]
    assert torch.equal(result, expected)


@pytest.mark.parametrize("make", [attention, encoder_layer])
def test_every_call_has_the_bits_of_the_plain_one(make: Callable[[], nn.Module]) -> None:
    def build() -> World:
        module = make()
        return World(module=module, function=lambda x: called(module, x) * 2 + 1)

    def call(world: World) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(2, 5, 8),), {}

    with torch.no_grad():
        twins = Twins(build)
        twins.warm(call)
        twins.calls_of(call, 4)
        twins.close()


def test_what_others_override_is_seen_and_nothing_stays() -> None:
    x, marked = torch.ones(2), torch.ones(2).as_subclass(Marked)
    ask = overrides.has_torch_function
    with UnseenMode():
        assert overrides.has_torch_function is not ask
        assert not overrides.has_torch_function((x, nn.Parameter(x), 3.0, None))
        assert overrides.has_torch_function((x, marked))
        with Plain():
            assert overrides.has_torch_function((x,))
        with UnseenMode():
            assert not overrides.has_torch_function((x,))
        with torch._C.DisableTorchFunctionSubclass():
            assert not overrides.has_torch_function((marked,))
        assert overrides.has_torch_function((marked,))
    assert overrides.has_torch_function is ask


def test_modules_that_come_later_ask_as_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = overrides.has_torch_function
    with UnseenMode():
        pass
    for name in ("torch_later", "torch_last"):  # the one that comes last tells that others came
        late = types.ModuleType(name)
        late.has_torch_function = ask  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, late)
        with UnseenMode():
            assert late.has_torch_function is not ask
            during = types.ModuleType("torch_meanwhile")
            during.has_torch_function = late.has_torch_function  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, "torch_meanwhile", during)
        assert late.has_torch_function is during.has_torch_function is ask
        monkeypatch.delitem(sys.modules, "torch_meanwhile")


def test_a_module_that_is_half_imported_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = overrides.has_torch_function
    half = types.ModuleType("torch_half")
    half.__spec__ = importlib.machinery.ModuleSpec("torch_half", None)
    half.__spec__._initializing = True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_half", half)
    with UnseenMode():
        pass
    half.has_torch_function = ask  # type: ignore[attr-defined]
    half.__spec__._initializing = False  # type: ignore[attr-defined]
    with UnseenMode():
        assert half.has_torch_function is not ask
    assert half.has_torch_function is ask


class Counting(UnseenMode):
    """Notes what is handed to it, and what asked and went on."""

    def __init__(self) -> None:
        super().__init__()
        self.handed: list[str] = []
        self.passed: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.handed.append(func.__name__)
        return func(*args, **(kwargs or {}))

    def passed_by(self, code: CodeType) -> None:
        self.passed.append(code.co_name)


def test_functions_of_torch_run_once_beside_an_unseen_mode() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    mode = Counting()
    before = torch.nn.functional.has_torch_function_unary
    with mode:
        torch.nn.functional.softmax(x, dim=1).sum().backward()
    assert "softmax" in mode.passed and "backward" in mode.passed and "backward" not in mode.handed
    assert mode.handed.count("softmax") == 1  # the method that the function calls
    assert torch.nn.functional.has_torch_function_unary is before


def test_a_mode_of_the_person_that_lies_on_top_is_not_popped() -> None:
    watching = UnseenMode()
    watching.join()
    with Plain() as on_top:
        assert not watching.leave()
        assert overrides._get_current_function_mode_stack() == [watching, on_top]
    assert watching.leave() and not overrides._get_current_function_mode_stack()


class CountingBackend:
    """A backend of `torch.compile` that counts what it compiles."""

    def __init__(self) -> None:
        self.compiled = 0

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        self.compiled += 1
        called: Callable[..., Any] = graph.forward
        return called


def test_a_traced_call_has_nothing_compiled_once_more() -> None:
    """What torch compiles is for the function modes on the stack; after eight times it compiles no more."""
    torch._dynamo.reset()
    backend, tracer = CountingBackend(), Tracer(PositionFinder())
    inner = torch.compile(lambda x: (x * 2).relu(), backend=backend, dynamic=False)
    xs = [torch.ones(n) for n in range(2, 5)]
    for x in xs:
        inner(x)
    for x in xs:
        result, call, escapes = record(tracer, torch.device("cpu"), [x], lambda x=x: inner(x) + 1)
        assert torch.equal(result, x * 2 + 1) and len(call.trace.ops) > 0
        assert [name for name, _ in escapes] == [COMPILED]
    assert backend.compiled == len(xs)
    assert not overrides._get_current_function_mode_stack()
    torch._dynamo.reset()


def test_a_traced_call_compiles_for_later_ones() -> None:
    torch._dynamo.reset()
    backend, tracer, x = CountingBackend(), Tracer(PositionFinder()), torch.ones(3)
    inner = torch.compile(lambda x: (x * 2).relu(), backend=backend)
    record(tracer, torch.device("cpu"), [x], lambda: inner(x))
    inner(x)
    assert backend.compiled == 1
    torch._dynamo.reset()


def test_what_is_kept_from_the_compiler_is_watched_on() -> None:
    """Optimizers are, and ask for no compiler."""
    tracer, x = Tracer(PositionFinder()), torch.ones(3)
    kept = torch._dynamo.disable(lambda x: x + 1)
    _, _, escapes = record(tracer, torch.device("cpu"), [x], lambda: kept(x).tolist())
    assert [name for name, _ in escapes] == ["tolist"]


def test_who_waits_for_a_module_is_handed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    found: list[int] = []
    for name in ("waited_for", "waited_no_more"):
        (tmp_path / f"{name}.py").write_text("value = 7\n")
    when_imported("waited_for", lambda module: found.append(module.value))
    when_imported("waited_no_more", lambda module: found.append(module.value))()
    assert found == []
    for name in ("waited_for", "waited_no_more"):
        importlib.import_module(name)
    assert found == [7]
    when_imported("waited_for", lambda module: found.append(-module.value))
    assert found == [7, -7]


def test_all_who_wait_for_a_module_are_handed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the compiler's frames, for which three parts of Grape wait."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "waited_for_by_many.py").write_text("")
    found: list[str] = []
    _, forget, _ = [when_imported("waited_for_by_many", lambda _, who=who: found.append(who)) for who in "abc"]
    forget()
    importlib.import_module("waited_for_by_many")
    assert found == ["a", "c"]


def test_what_grape_looks_at_is_no_escape() -> None:
    """As a predictor that learns for one function does while another one's call is traced."""
    tracer = Tracer(PositionFinder())
    x = torch.randn(3)
    places = {"x": x}
    reads = "x.untyped_storage()\nx.storage_offset()\nx._version\nx.data_ptr()\n"
    ours, theirs = (compile(reads, file, "exec") for file in (grape.__file__, __file__))
    _, _, escapes = record(tracer, torch.device("cpu"), [x], lambda: exec(ours, dict(places)))
    assert not escapes
    _, _, escapes = record(tracer, torch.device("cpu"), [x], lambda: exec(theirs, dict(places)))
    assert len(escapes) == 4


def test_what_grape_calls_for_the_person_is_an_escape() -> None:
    """The immediate caller is Grape's there, too, but does not name what it reads."""
    tracer = Tracer(PositionFinder())
    x = torch.randn(3)
    calls = compile("read(x)", grape.__file__, "exec")
    for read in (torch.Tensor.storage_offset, operator.attrgetter("_version"), operator.methodcaller("data_ptr")):
        _, _, escapes = record(tracer, torch.device("cpu"), [x], lambda read=read: exec(calls, {"read": read, "x": x}))
        assert len(escapes) == 1


def test_a_version_that_a_callable_of_c_reads_is_in_no_graph() -> None:
    one, version = torch.ones(3), grape.graph(operator.attrgetter("_version"))

    def work(x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(12):
            y = torch.tanh(y * 1.5 + 0.1)
        return y + version(x)

    served = grape.graph(work)
    for i in range(60):
        if i >= 30:
            one.add_(0)
        assert torch.equal(work(one), served(one)), i
