"""CUDA graphs of compiled code: what must not end in a graph that leaves something else, or in an error of Grape's."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.compile_fx  # it wraps functions of torch for good
import torch.autograd.profiler
from torch import Tensor

from grape import native
from grape.native import Unavailable
from grape.streams import profilers
from grape.streams.compiled.code import Code, read
from grape.streams.compiled.memory import copied, extent
from tests.property.stream_programs import needs_compiler
from tests.unit.test_streams_compiled_graphs import CUDA, Made, Pretended, part, plain

torch._dynamo.mutation_guard.install_generation_tagging_init()  # the first compilation does it, for good


def count(x: Tensor, state: Tensor) -> tuple[Tensor]:
    state.add_(x)
    return (state * 2,)


def counting() -> Made:
    return Made(count, static=(1,), mutated_input_idxs=(1,))


def at_replay(process: Pretended, number: int, does: Callable[[], object]) -> None:
    """Have it done behind that replay of the first graph."""
    capture = process.capture

    def captured(function: Callable[[], Any]) -> Any:
        graph, results = capture(function)
        replay = graph.replay

        def replayed() -> None:
            replay()
            if process.replayed == number:
                does()

        graph.replay = replayed
        return graph, results

    process.graphs._process = replace(process.graphs._process, capture=captured)


@pytest.mark.parametrize("number", [1, 2])
def test_a_capture_that_is_stopped_leaves_no_graph(number: int) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    process, made, state = Pretended(), counting(), torch.zeros(2)
    at_replay(process, number, stop)
    for _ in range(2):
        process.run(made, torch.ones(2), state)
    with pytest.raises(KeyboardInterrupt):
        process.run(made, torch.ones(2), state)
    assert state.tolist() == [3.0, 3.0]  # as the call left it that was stopped behind its end
    for call in range(4, 7):
        assert process.run(made, torch.ones(2), state)[0].tolist() == [2.0 * call] * 2
    assert process.reset == 1 and not process.graphs.counted.matched and process.graphs.counted.bytes == 0


@pytest.mark.parametrize("shared", [False, True])
def test_what_runs_at_a_capture_and_is_not_in_the_graph(shared: bool) -> None:
    """As kernels on a stream that nobody captures: it left its bits where the graph should leave them."""
    ran: list[Tensor] = []

    def captured(function: Callable[[], Any]) -> Any:
        results = function()
        return types.SimpleNamespace(replay=lambda: ran.append(results[0]), reset=lambda: None), results

    process = Pretended(capture=captured)
    made = Made(lambda x: (y := x + 1, part(y, 0, 2)) if shared else (x + 1,))
    for number in range(6):
        for one in process.run(made, torch.full((2,), float(number))):
            assert one.tolist() == [number + 1.0] * 2
    assert ran and not process.graphs.counted.matched


def test_an_input_that_is_written_and_not_told_of() -> None:
    def writes(x: Tensor) -> tuple[Tensor]:
        x.add_(1)
        return (torch.ones(2),)

    process, made = Pretended(), Made(writes)
    for _ in range(6):
        x = torch.zeros(2)
        process.run(made, x)
        assert x.tolist() == [1.0, 1.0]
    assert not process.graphs.counted.matched


def test_inputs_that_no_graph_may_read() -> None:
    process, made = Pretended(addresses=lambda inputs, code: None), Made(lambda x: (x + 1,))
    for _ in range(5):
        process.run(made, torch.ones(2))
    assert not process.captured and made.calls == 5


def test_results_that_the_code_holds_are_handed_out_themselves() -> None:
    held = torch.ones(2)
    process, made = Pretended(), Made(lambda x: (x + 1, held))
    for _ in range(6):
        assert process.run(made, torch.ones(2))[1] is held
    assert held.tolist() == [1.0, 1.0] and not process.graphs.counted.matched


def test_state_of_inference_mode_that_code_writes_outside_of_it() -> None:
    """Only code that goes by pointers may; nobody else's copies are put there."""
    with torch.inference_mode():
        state = torch.zeros(2)

    def writes(x: Tensor, state: Tensor) -> tuple[Tensor]:
        state.numpy()[:] += x.numpy()
        return (state * 2,)

    process, made = Pretended(), Made(writes, static=(1,), mutated_input_idxs=(1,))
    for number in range(6):
        process.run(made, torch.ones(2), state)
        assert state.tolist() == [number + 1.0] * 2
    with torch.inference_mode():
        for number in range(6, 12):
            process.run(made, torch.ones(2), state)
            assert state.tolist() == [number + 1.0] * 2
    assert process.graphs.counted.captured == 1


def test_autograd_sees_no_other_writes_than_those_of_the_code() -> None:
    def writes(x: Tensor, state: Tensor) -> tuple[Tensor]:
        state.numpy()[:] += x.numpy()
        return (x + 1,)

    process, made, state = Pretended(), Made(writes, static=(1,), mutated_input_idxs=(1,)), torch.zeros(2)
    for _ in range(6):
        process.run(made, torch.ones(2), state)
    assert state._version == 0 and process.graphs.counted.matched


def test_a_graph_that_takes_the_device_longer_is_none() -> None:
    process, made = Pretended(), Made(lambda x: (x + 1,))
    process.took = [2, 1]  # from the last: the code, then its graph with the copies around it
    for _ in range(6):
        process.run(made, torch.ones(2))
    assert process.captured == process.reset == 1
    assert any("no faster" in why for why in process.graphs.counted.written)


def test_copies_count_to_the_budget() -> None:
    process = Pretended(budget=3000)
    for size in (100, 101, 900):
        made = Made(lambda x: (x + 1,))
        for _ in range(4):
            process.run(made, torch.ones(size))
    assert process.captured == 2 and process.graphs.counted.bytes == 2 * 1024 + 4 * 201 <= 3000
    assert any("no room" in why for why in process.graphs.counted.written)


def test_states_of_which_no_copies_fit_the_budget() -> None:
    process, made, state = Pretended(budget=800), Made(count, static=(1,), mutated_input_idxs=(1,)), torch.zeros(100)
    for _ in range(5):
        process.run(made, torch.ones(100), state)
    assert not process.captured and state[0] == 5


def test_graphs_of_code_that_is_gone_go_with_the_next_call() -> None:
    process, gone = Pretended(), list[int]()
    other = Made(lambda x: (x + 2,), options={"is_inference": False})
    dead: Any = types.SimpleNamespace(bytes=0, graph=types.SimpleNamespace(reset=lambda: gone.append(1)))
    process.graphs._dead.append(dead)
    for here, expected in ((False, []), (True, [1])):
        process.here = here
        process.run(other, torch.ones(1))
        assert gone == expected


def test_a_stream_that_closes_while_code_runs_in_another_thread() -> None:
    process, made = Pretended(), Made(lambda x: (x + 1,))
    for _ in range(4):
        process.run(made, torch.ones(1))
    inside, closed = threading.Event(), threading.Event()

    def waits(x: Tensor) -> tuple[Tensor]:
        inside.set()
        closed.wait(10)
        return (x,)

    other = Made(waits)
    thread = threading.Thread(target=process.run, args=(other, torch.ones(1)))
    thread.start()
    inside.wait(10)
    process.graphs.close()
    assert process.reset == 0
    closed.set()
    thread.join()
    assert process.reset == 1
    replayed = process.replayed
    process.run(made, torch.ones(1))
    assert process.replayed == replayed


@pytest.mark.parametrize(
    "told",
    [
        {"source_code": "torch.ops.aten._print.default('hi')"},
        {"source_code": "inductor_ops.resize_storage_bytes_(arg0_1, 64)"},
        {"source_code": "torch.ops.inductor.accumulate_grad_(a, b)"},
        {"source_code": "buf0 = _quantized.linear(x)"},
        {"source_code": "torch.ops.aten._cudnn_rnn.default(x)"},
        {"source_code": "stream1 = get_external_object_by_index(3)"},
        {"source_code": "with stream1:\n    kernel.run(x)"},
        {"source_code": "run_intermediate_hooks('a', buf0)"},
        {"source_code": "torch.cuda.nvtx.range_push('graph 0')"},
        {"source_code": "u0 = arg0_1.item()"},
        {"options": {"cpp_wrapper": True}},
        {"device_idxs": {1}},
        {"runnable_graph_str": "torch.ops.aten.as_strided.default(arg0_1, [2], [1], 4)"},
        {"runnable_graph_str": "torch.ops.aten.set_.source_Tensor(a, b)"},
    ],
)
def test_code_that_does_more_than_to_launch(told: dict[str, Any]) -> None:
    assert read(Made(lambda x: (x,)), 1, CUDA).refused == ""
    assert read(Made(lambda x: (x,), **told), 1, CUDA).refused


def test_copies_begin_as_far_from_a_boundary() -> None:
    memory = torch.arange(600.0).as_strided((4, 3), (10, 2), 5)
    copy = copied(memory, 20)
    assert torch.equal(copy, memory) and copy.stride() == (10, 2) and copy.storage_offset() == 5
    assert extent(memory) == 4 * (30 + 4 + 1) and extent(torch.empty(0, 3)) == 0
    with pytest.raises(RuntimeError):
        copied(torch.ones(2), 6)


@needs_compiler
class TestAddresses:
    def ask(self, inputs: list[Any], stay: tuple[int, ...], written: tuple[int, ...] = (), device: int = -1) -> Any:
        extension = native.load()
        assert not isinstance(extension, Unavailable)
        move = tuple(at for at in range(len(inputs)) if at not in stay)
        return extension.addresses(inputs, stay, move, written, device)

    def test_what_stays_is_known_by_its_place_and_layout(self) -> None:
        one = torch.zeros(4, 4)
        same = torch.empty(0).set_(one.untyped_storage(), 0, (4, 4), (4, 1))  # type: ignore[call-overload]
        assert self.ask([one], (0,)) == self.ask([same], (0,))
        for other in (one.t(), one[:2], one[1:], one.view(torch.int32), one.clone()):
            assert self.ask([one], (0,)) != self.ask([other], (0,))

    def test_what_moves_is_known_by_the_class_of_its_address(self) -> None:
        memory = torch.zeros(1000)
        at = -memory.data_ptr() // 4 % 64
        found = [self.ask([memory[at + begin :][:2]], ()) for begin in (0, 64, 1, 2, 32)]
        assert found[0] == found[1] and len(set(found)) == 4

    def test_what_moves_may_not_lie_where_the_code_writes(self) -> None:
        state = torch.zeros(8)
        assert self.ask([torch.ones(2), state], (1,), (1,)) is not None
        assert self.ask([state[:2], state], (1,), (1,)) is None
        assert self.ask([state[:2], state], (1,)) is not None
        again = torch.from_numpy(state.numpy()[4:])  # another storage
        assert self.ask([again, state], (1,), (1,)) is None

    def test_what_is_no_plain_tensor_has_none(self) -> None:
        for odd in (None, 1.0, torch.ones(2).to_sparse(), torch.nn.Buffer, torch._efficientzerotensor(2)):
            assert self.ask([odd], ()) is None and self.ask([odd], (0,)) is None
        assert self.ask([3, torch.ones(1)], (1,)) is not None
        assert self.ask([torch.ones(1)], (0,), device=0) is None

    def test_codes_say_which_is_which(self) -> None:
        made = Made(count, static=(1,), mutated_input_idxs=(1,))
        found = read(made, 2, CUDA)
        assert isinstance(found, Code) and (found.static, found.moving, found.changed) == ((1,), (0,), (1,))


def test_profilers_and_hooks_hear_of_each_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not profilers.are_told()
    with torch.profiler.profile():
        assert profilers.are_told()
    assert not profilers.are_told()
    chain = types.SimpleNamespace(calls=[])
    runtime = types.SimpleNamespace(launch_enter_hook=chain, launch_exit_hook=None)
    monkeypatch.setitem(sys.modules, "triton.knobs", types.SimpleNamespace(runtime=runtime))
    assert not profilers.are_told()
    chain.calls.append(print)
    assert profilers.are_told()
    runtime.launch_enter_hook = print
    assert profilers.are_told()


def test_an_error_of_the_capture_is_not_the_callers() -> None:
    process, made = Pretended(), Made(lambda x: (x + 1,))
    for _ in range(3):
        assert process.graphs.run(made, [torch.ones(1).expand(3)], plain)[0].tolist() == [2.0] * 3
    assert not process.captured
