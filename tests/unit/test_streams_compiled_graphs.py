"""CUDA graphs of compiled code: which calls get one, what they read, and when they serve no more. A graph is pretended:
its replay calls the code again, into the same results.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.compile_fx  # it wraps functions of torch for good
from torch import Tensor
from torch._inductor.output_code import CompiledFxGraph
from torch.utils._python_dispatch import TorchDispatchMode

from grape.model.stream import COMPILED, WAITING
from grape.streams.compiled import Code, CompiledGraphs, Process
from grape.streams.compiled.code import read
from grape.streams.compiled.graphs import FREE, WARM
from tests.property.stream_programs import needs_compiler

torch._dynamo.mutation_guard.install_generation_tagging_init()  # the first compilation does it, for good


CUDA = torch.device("cuda", 0)


class Made:
    """As Inductor describes its code; `call` is what it does."""

    def __init__(self, call: Callable[..., tuple[Any, ...]], **told: Any) -> None:
        self.call = call
        self.calls = 0
        options = {"cudagraphs": False, "is_inference": True, "static_input_idxs": told.pop("static", ())}
        self.fx_kwargs = options | told.pop("options", {})
        self.source_code = "kernel_0.run(x)\nextern_kernels.mm(a, b)\n"
        self.runnable_graph_str = "torch.ops.aten.mm.default(a, b)"
        self.mutated_input_idxs: tuple[int, ...] = ()
        self.device_types = {"cuda"}
        self.device_idxs = {0}
        self.disabled_cudagraphs_reason = None
        self.torchbind_constants: dict[str, Any] = {}
        vars(self).update(told)


def plain(made: Made, inputs: list[Any]) -> Any:
    given = list(inputs)
    inputs.clear()
    made.calls += 1
    return made.call(*given)


def addresses(inputs: list[Any], code: Code) -> bytes | None:
    """As `inputs.h`, which is asked itself where there is a compiler."""
    return repr([inputs[at].data_ptr() for at in code.static]).encode()


class Pretended:
    """What a stream would know; `captured` counts graphs, `reset` those that were destroyed."""

    def __init__(self, **more: Any) -> None:
        self.captured = self.reset = self.replayed = 0
        self.here, self.changes, self.drawn = True, 0, 0
        self.wrong = False
        self.took = [1]
        self.graphs = CompiledGraphs(
            Process(
                device=torch.device("cpu"),
                budget=more.pop("budget", 1 << 30),
                capture=more.pop("capture", self.capture),
                is_here=lambda: self.here,
                addresses=more.pop("addresses", lambda inputs, code: addresses(inputs, code)),
                begins=lambda one: one.data_ptr() % 256,
                timed=self.timed,
                changes=lambda: self.changes,
                draws=lambda: self.drawn,
                reserved=lambda: self.captured << 10,
            )
        )

    def capture(self, function: Callable[[], Any]) -> tuple[Any, Any]:
        self.captured += 1
        results = function()
        outer = self

        class Graph:
            def replay(self) -> None:
                outer.replayed += 1
                for into, value in zip(results, function(), strict=True):
                    if isinstance(into, Tensor) and into is not value:
                        into.copy_(value + 1 if outer.wrong else value)

            def reset(self) -> None:
                outer.reset += 1

        return Graph(), results

    def timed(self, call: Callable[[], Any]) -> tuple[Any, int]:
        return call(), self.took.pop() if len(self.took) > 1 else self.took[0]

    def run(self, made: Made, *inputs: Any) -> Any:
        return self.graphs.run(made, list(inputs), plain)


def test_the_third_call_is_captured_and_later_ones_are_replayed() -> None:
    process, made = Pretended(), Made(lambda x, w: (x @ w,), static=(1,))
    w = torch.randn(3, 3)
    for number in range(6):
        x = torch.randn(2, 3)
        assert torch.equal(process.run(made, x, w)[0], x @ w), number
    assert process.captured == 1 and process.replayed == 2 + 3
    counted = process.graphs.counted
    assert (counted.seen, counted.matched, counted.segments, counted.recorded) == (12, 6, 3, 2)
    assert counted.written == {WAITING: 6}


def test_results_are_nobody_elses() -> None:
    process, made = Pretended(), Made(lambda x: (x + 1, x * 2))
    kept = [process.run(made, torch.full((2,), float(number))) for number in range(6)]
    for number, (one, two) in enumerate(kept):
        assert one.tolist() == [number + 1.0] * 2 and two.tolist() == [number * 2.0] * 2


def test_results_were_written_as_often_as_the_codes() -> None:
    """Kernels of Triton's write unseen; the library calls beside them are seen."""

    def call(x: Tensor) -> tuple[Tensor, ...]:
        filled, unseen = torch.empty_like(x).copy_(x).add_(1), x * 2
        return filled, unseen, x, unseen.numpy().size

    process, made = Pretended(), Made(call)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            for _ in range(6):
                one, two, *_ = process.run(made, torch.ones(2))
                assert one.is_inference() or (one._version, two._version) == (2, 0)
    assert process.captured == 2


def test_inputs_are_taken_out_of_the_list_as_the_code_does() -> None:
    process, made = Pretended(), Made(lambda x: (x + 1,))
    for _ in range(5):
        inputs = [torch.ones(2)]
        process.graphs.run(made, inputs, plain)
        assert inputs == []


def test_what_is_static_is_read_where_it_lies() -> None:
    process, made = Pretended(), Made(lambda x, w: (x * w,), static=(1,))
    w, x = torch.ones(2), torch.ones(2)
    for number in range(6):
        w.fill_(number)
        assert process.run(made, x, w)[0].tolist() == [float(number)] * 2
    other = torch.full((2,), 7.0)
    for _ in range(4):
        assert process.run(made, x, other)[0].tolist() == [7.0, 7.0]
    assert process.captured == 2


def test_what_the_code_writes_is_written_once_a_call() -> None:
    def count(x: Tensor, state: Tensor) -> tuple[Tensor]:
        state.add_(x)
        return (state * 2,)

    process, made = Pretended(), Made(count, static=(1,), mutated_input_idxs=(1,))
    state = torch.zeros(2)
    for number in range(6):
        assert process.run(made, torch.ones(2), state)[0].tolist() == [2.0 * (number + 1)] * 2
        assert state.tolist() == [number + 1.0] * 2
    assert process.captured == 1 and process.graphs.counted.matched


def test_an_input_that_is_a_result_is_handed_out_itself() -> None:
    process, made = Pretended(), Made(lambda x, w: (x + w, w, x), static=(1,))
    w = torch.ones(2)
    for _ in range(6):
        x = torch.randn(2)
        _, same, also = process.run(made, x, w)
        assert same is w and also is x
    assert process.graphs.counted.matched


def part(whole: Tensor, begin: int, size: int) -> Tensor:
    """As Inductor cuts it out: to autograd no view of the whole."""
    return torch.empty(0).set_(whole.untyped_storage(), begin, (size,), (1,))


@pytest.mark.parametrize("call", [lambda x: (x[1:],), lambda x: (y := x + 1, y[:1]), lambda x: ((x + 1)[1:],)])
def test_views_are_left_alone(call: Callable[..., tuple[Any, ...]]) -> None:
    process, made = Pretended(), Made(call)
    for _ in range(6):
        process.run(made, torch.ones(3))
    assert not process.graphs.counted.matched and process.reset == process.captured == 1


def test_results_that_share_memory_share_a_copy() -> None:
    process = Pretended()
    made = Made(lambda x: (y := x * 2, x + 1, part(y, 1, 3), part(x + 3, 2, 2).view(torch.int32)))
    kept: list[Any] = []
    for number in range(6):
        found = process.run(made, torch.full((4,), float(number)))
        kept += [(number, found)]
        found[2].zero_()
        assert found[0].tolist() == [2.0 * number, 0, 0, 0] and found[1].tolist() == [number + 1.0] * 4
        assert [one.storage_offset() for one in found] == [0, 0, 1, 2]
        assert found[3].untyped_storage().nbytes() == 16 and not found[2]._is_view()
        found[0].add_(1)
    for number, found in kept:
        assert found[2].tolist() == [1.0] * 3 and found[0][0] == 2 * number + 1
        assert found[3].view(torch.float32).tolist() == [number + 3.0] * 2
    assert process.graphs.counted.captured == 1 and process.graphs.counted.matched


@pytest.mark.parametrize(
    "lies", [lambda y, odd: part(y, 1 + odd, 3), lambda y, odd: part(torch.zeros(8) if odd else y, 1, 3)]
)
def test_results_that_do_not_always_share_memory_are_left_alone(lies: Callable[[Tensor, bool], Tensor]) -> None:
    def call(x: Tensor) -> tuple[Tensor, ...]:
        made.calls += 1
        y = torch.zeros(8)
        return y, lies(y, made.calls % 4 > 1)

    process, made = Pretended(), Made(call)
    for _ in range(8):
        process.run(made, torch.ones(3))
    assert not process.graphs.counted.matched and process.reset == process.captured == 1


def test_sizes_and_numbers_have_graphs_of_their_own() -> None:
    process, made = Pretended(), Made(lambda n, x: (x * n,))
    for _ in range(5):
        for n, size in ((2, 3), (3, 3), (2, 4)):
            assert process.run(made, n, torch.ones(size))[0].tolist() == [float(n)] * size
    assert process.captured == 3


def test_captures_beyond_the_first_ones_have_to_be_earned() -> None:
    """Lengths that come a few times each, as of a cache that grows: their graphs would cost more than they save."""
    process, made = Pretended(), Made(lambda x: (x + 1,))
    for _ in range(WARM + 1):
        for size in range(1, FREE + 9):
            process.run(made, torch.ones(size))
    assert process.captured == FREE
    process.graphs.counted.saved_ns = process.graphs.counted.capture_ns + 10**9
    for size in range(1, FREE + 9):
        process.run(made, torch.ones(size))
    assert process.captured == FREE + 8


def test_other_bits_end_it() -> None:
    process, made = Pretended(), Made(lambda x: (x + 1,))
    process.wrong = True
    for _ in range(6):
        assert process.run(made, torch.zeros(2))[0].tolist() == [1.0, 1.0]
    assert process.captured == process.reset == 1 and not process.graphs.counted.matched
    assert any("other bits" in why for why in process.graphs.counted.written)


def test_state_is_as_the_code_left_it_where_a_graph_left_it_otherwise() -> None:
    process, calls = Pretended(), [0]

    def odd(x: Tensor, state: Tensor) -> tuple[Tensor]:
        calls[0] += 1
        state.add_(calls[0])
        return (x,)

    made, state = Made(odd, static=(1,), mutated_input_idxs=(1,)), torch.zeros(1)
    for _ in range(3):
        process.run(made, torch.ones(1), state)
    assert state.item() == 1 + 2 + 3 and not process.graphs.counted.captured


def test_code_that_draws_random_numbers_runs_as_it_is() -> None:
    process = Pretended()

    def draw(x: Tensor) -> tuple[Tensor]:
        process.drawn += 1
        return (x,)

    made = Made(draw)
    for _ in range(5):
        process.run(made, torch.ones(1))
    assert not process.captured and made.calls == 5


def test_what_computes_otherwise_is_captured_anew() -> None:
    process, scale = Pretended(), [1.0]
    made = Made(lambda x: (x * scale[0],))
    for _ in range(5):
        process.run(made, torch.ones(1))
    process.changes += 1
    for _ in range(5):
        process.run(made, torch.ones(1))
    assert process.captured == 2 and process.reset == 1


def test_another_stream_or_a_mode_has_the_code_run_as_it_is() -> None:
    process, made = Pretended(), Made(lambda x: (x + 1,))
    for _ in range(4):
        process.run(made, torch.ones(1))
    replayed, process.here = process.replayed, False
    process.run(made, torch.ones(1))
    process.here = True

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    with Mode():
        process.run(made, torch.ones(1))
    assert process.replayed == replayed


def test_inference_mode_has_graphs_of_its_own() -> None:
    process, made = Pretended(), Made(lambda x: (x + 1,))
    for _ in range(5):
        with torch.inference_mode():
            assert process.run(made, torch.ones(1))[0].is_inference()
        assert not process.run(made, torch.ones(1))[0].is_inference()
    assert process.captured == 2


@pytest.mark.parametrize("error", [RuntimeError, AssertionError, TypeError])
def test_a_capture_that_fails_is_not_tried_again(error: type[Exception]) -> None:
    tried = []

    def fails(function: Callable[[], Any]) -> Any:
        tried.append(1)
        raise error("no")

    process, made = Pretended(capture=fails), Made(lambda x: (x + 1,))
    for _ in range(5):
        assert process.run(made, torch.zeros(1))[0].item() == 1
    assert len(tried) == 1 and made.calls == 5


def test_an_error_of_the_code_is_the_callers() -> None:
    def raises(x: Tensor) -> tuple[Tensor]:
        raise ValueError("of the code")

    process, made = Pretended(), Made(raises)
    for _ in range(5):
        with pytest.raises(ValueError, match="of the code"):
            process.run(made, torch.ones(1))


def test_graphs_beyond_the_budget_are_destroyed() -> None:
    process, made = Pretended(budget=1000), Made(lambda x: (x + 1,))
    for _ in range(5):
        process.run(made, torch.ones(1))
    assert process.captured == process.reset == 1 and process.graphs.counted.bytes == 0


def test_graphs_of_code_that_is_gone_are_destroyed() -> None:
    reset = []

    class Still:
        """Holds nothing of the code, as a real graph."""

        def __init__(self, results: tuple[Tensor, ...]) -> None:
            self.results, self.values = results, [one.clone() for one in results]

        def replay(self) -> None:
            for into, value in zip(self.results, self.values, strict=True):
                into.copy_(value)

        def reset(self) -> None:
            reset.append(1)

    process, made = Pretended(capture=lambda function: (Still(found := function()), found)), Made(lambda x: (x + 1,))
    for _ in range(4):
        process.run(made, torch.ones(1))
    del made
    gc.collect()
    other = Made(lambda x: (x + 2,))
    for _ in range(4):
        assert process.run(other, torch.ones(1))[0].item() == 3
    assert process.graphs.counted.captured == 2 and len(reset) == 1
    process.graphs.close()
    assert len(reset) == 2


@pytest.mark.parametrize(
    "told",
    [
        {"options": {"is_inference": False}},
        {"options": {"cudagraphs": True}},
        {"device_types": {"cuda", "cpu"}},
        {"device_types": {"cpu"}},
        {"device_idxs": {0, 1}},
        {"disabled_cudagraphs_reason": "it said so"},
        {"torchbind_constants": {"one": object()}},
        {"source_code": "torch.ops.mylib.log(x)"},
        {"source_code": "torch.ops.higher_order.with_effects(x)"},
        {"source_code": "torch.ops._c10d_functional.all_reduce(x)"},
        {"source_code": "buf0 = empty_strided_p2p((2,), (1,))"},
        {"source_code": ""},
        {"mutated_input_idxs": (0,)},
        {"fx_kwargs": {}},
    ],
)
def test_code_that_no_graph_may_stand_for(told: dict[str, Any]) -> None:
    process, made = Pretended(), Made(lambda x: (x + 1,), **told)
    for _ in range(5):
        process.run(made, torch.ones(1))
    assert not process.captured and made.calls == 5 and process.graphs.counted.seen >= 5


@needs_compiler
def test_code_that_torch_makes_here_tells_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the device, which is no GPU here."""
    seen = []
    call_it = CompiledFxGraph.__call__

    def call(made: Any, inputs: list[Any]) -> Any:
        seen.append((made, len(inputs)))
        return call_it(made, inputs)

    monkeypatch.setattr(CompiledFxGraph, "__call__", call)
    layer = torch.nn.Linear(4, 4).eval()
    with torch.no_grad():
        torch.compile(lambda x: torch.nn.functional.gelu(layer(x)))(torch.ones(2, 4))
    made, inputs = seen[-1]
    assert read(made, inputs, CUDA).refused == COMPILED
    monkeypatch.setattr(made, "device_types", {"cuda"})
    monkeypatch.setattr(made, "device_idxs", {0})
    code = read(made, inputs, CUDA)
    assert code.refused == "" and len(code.static) == 2 and len(code.moving) == 1 and not code.changed
    torch._dynamo.reset()


def test_code_of_a_torch_that_tells_nothing_is_left_alone() -> None:
    assert read(object(), 2, CUDA).refused == COMPILED
    assert read(Made(lambda x: (x,), source_code="a.run(x)\nb.run(y)\ntorch.ops.aten.sort(z)"), 1, CUDA).launches == 3
