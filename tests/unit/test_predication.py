"""`Predicate`, `cond`, `while_loop` and the select lowering: nullified writes, merged results, refusals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import grape
from grape.errors import UsageError
from grape.runtime.backends.protocol import CaptureFailed
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.predication import NodeLowering, flow
from grape.runtime.predication.costs.costs import BodyWork, Choice
from grape.runtime.predication.lowering import select
from grape.runtime.predication.lowering.select import SelectLowering

CPU = torch.device("cpu")
NAN = float("nan")


def bits(tensor: torch.Tensor) -> list[int]:
    result: list[int] = tensor.contiguous().view(torch.uint8).flatten().tolist()
    return result


def special(dtype: torch.dtype) -> torch.Tensor:
    """Values whose bits arithmetic would not keep: a NaN with a payload, -0.0, infinities."""
    if dtype == torch.bool:
        return torch.tensor([True, False, True, True])
    if dtype.is_floating_point or dtype.is_complex:
        made = torch.tensor([NAN, -0.0, float("inf"), 1.5]).to(dtype)
        made.view(torch.uint8).view(-1)[0] = 1
        return made
    return torch.tensor([1, -2, 3, 4]).to(dtype)


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
DTYPES += [torch.complex64, torch.complex128]


# -- Predicate -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cond", [True, False, torch.tensor(True), torch.tensor(0.0), torch.tensor([3])])
def test_predicate_writes_only_where_true(cond: Any) -> None:
    memory = torch.arange(6.0).reshape(2, 3)
    ran = []
    with grape.Predicate(cond):
        ran.append(1)
        memory.add_(1)
        memory[:, 1] = -1
        torch.mul(memory, 2, out=memory)
        made = torch.zeros(3)
        made.add_(5)
    expected = torch.arange(6.0).reshape(2, 3)
    if bool(cond):
        expected = expected.add(1)
        expected[:, 1] = -1
        expected *= 2
    assert ran == [1]
    assert torch.equal(memory, expected)
    assert made.tolist() == [5, 5, 5]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_predicate_gives_back_the_same_bits(dtype: torch.dtype) -> None:
    memory = special(dtype)
    before = bits(memory)
    with grape.Predicate(torch.tensor(False)):
        memory.copy_(memory.flip(0))
        memory.zero_()
    assert bits(memory) == before


class Kept(TorchDispatchMode):
    """Counts the copies of old contents."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.copies = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch._dynamo is imported, and patches torch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.copies += func is torch.ops.aten.clone.default and args[0].dim() > 0  # not the predicate
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("value", [True, False])
def test_memory_that_is_written_again_is_kept_once(value: bool) -> None:
    memory, pred, always = torch.arange(4.0), torch.tensor(value), torch.tensor(True)
    with Kept() as kept, grape.Predicate(pred):
        for _ in range(3):
            memory.add_(1)
        memory[1:].mul_(2)
        memory[1:].mul_(2)
        with grape.Predicate(always):
            memory.add_(1)  # the inner block's first write
        memory.view(2, 2).add_(1)
    assert kept.copies == 4  # whole, its end, whole for the inner block, another shape of it
    assert memory.tolist() == ([5.0, 18.0, 22.0, 26.0] if value else [0.0, 1.0, 2.0, 3.0])


@settings(derandomize=True, deadline=None, max_examples=150)
@given(data=st.data())
def test_overlapping_writes_are_given_back(data: st.DataObject) -> None:
    """Any order of writes to parts of one piece of memory, in nested blocks, leaves what plain control flow leaves."""
    parts = st.tuples(st.integers(0, 5), st.integers(1, 6), st.booleans())
    outer, inner = data.draw(st.booleans()), data.draw(st.booleans())
    writes = [data.draw(st.lists(parts, max_size=5)) for _ in range(3)]
    memory, plain = torch.arange(8.0), torch.arange(8.0)

    def write(target: torch.Tensor, parts: list[tuple[int, int, bool]]) -> None:
        for start, length, doubled in parts:
            piece = target[start : start + length]
            piece.mul_(2) if doubled else piece.add_(1)

    with grape.Predicate(torch.tensor(outer)):
        write(memory, writes[0])
        with grape.Predicate(torch.tensor(inner)):
            write(memory, writes[1])
        write(memory, writes[2])
    if outer:
        write(plain, writes[0])
        if inner:
            write(plain, writes[1])
        write(plain, writes[2])
    assert bits(memory) == bits(plain)


@pytest.mark.parametrize("way", ["node", "select"])
def test_what_a_body_does_is_counted(way: Choice) -> None:
    backend = ReferenceBackend()
    memory, other, pred = torch.zeros(100), torch.zeros(10), torch.tensor(True)
    lowering = NodeLowering(backend, {(0,): way, (1,): way}, nullcontext)

    def body() -> None:
        with lowering.active():
            with grape.Predicate(pred):
                memory.add_(1)
                memory.add_(1)
                other.add_(torch.empty(10).fill_(1.0))
            lowering.cond(pred, lambda: memory * 2, lambda: memory, certain=True)

    graph, _ = backend.capture(body)
    graph.release()
    assert lowering.works[(0,)] == [BodyWork(kernels=4, nbytes=1_600 + 120 + 80, writes=2, written_nbytes=440)]
    assert lowering.works[(1,)] == [BodyWork(kernels=1, nbytes=800), BodyWork(marked=False)]


def test_nested_predicates_need_both() -> None:
    for outer in (True, False):
        for inner in (True, False):
            memory = torch.zeros(2)
            with grape.Predicate(torch.tensor(outer)):
                memory[0] = 1
                with grape.Predicate(torch.tensor(inner)):
                    memory.add_(10)
                memory[1] += 1
            assert memory.tolist() == ([11.0 * inner + (not inner), 10.0 * inner + 1] if outer else [0, 0])


def test_predicate_ends_with_an_exception() -> None:
    memory = torch.zeros(2)
    with pytest.raises(ZeroDivisionError), grape.Predicate(torch.tensor(False)):
        memory.add_(1)
        raise ZeroDivisionError
    assert memory.tolist() == [0, 0]


def test_predicate_within_inference_mode() -> None:
    with torch.inference_mode():
        memory = torch.zeros(2)
        with grape.Predicate(torch.tensor(False)):
            memory.add_(1)
    assert memory.tolist() == [0, 0]
    assert (torch.ones(1, requires_grad=True) * 2).requires_grad


def test_predicate_covers_running_statistics() -> None:
    norm = torch.nn.BatchNorm1d(2)
    with torch.no_grad(), grape.Predicate(torch.tensor(False)):
        norm(torch.randn(4, 2, generator=torch.Generator().manual_seed(0)))
    assert norm.running_mean is not None and norm.running_mean.tolist() == [0, 0]
    assert norm.num_batches_tracked is not None and norm.num_batches_tracked.item() == 0


def test_predicate_refuses_writes_that_autograd_records() -> None:
    weight = torch.ones(2, requires_grad=True) * 1
    with pytest.raises(UsageError, match=r"needs gradients"), grape.Predicate(torch.tensor(False)):
        weight.mul_(2)


def test_select_brings_a_value_out() -> None:
    for value in (True, False):
        with grape.Predicate(torch.tensor(value)) as predicate:
            inside = torch.ones(2)
        assert predicate.select(inside, torch.zeros(2)).tolist() == [value, value]


# -- cond and while_loop ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pred", [True, False, 1, 0, 0.0, torch.tensor(True), torch.tensor([0])])
def test_cond_calls_one_function_eagerly(pred: Any) -> None:
    called = []

    def arm(name: str) -> Callable[[int], str]:
        return lambda value: called.append(name) or f"{name}{value}"

    assert grape.cond(pred, arm("yes"), arm("no"), (3,)) == ("yes3" if pred else "no3")
    assert called == ["yes" if pred else "no"]


def test_while_loop_eagerly() -> None:
    count, total = grape.while_loop(lambda i, s: i < 4, lambda i, s: (i + 1, s + i), (torch.tensor(0), 0.0))
    assert (count.item(), float(total)) == (4, 6.0)
    with pytest.raises(UsageError, match="tuple of the 1 carried values"):
        grape.while_loop(lambda i: i < 4, lambda i: i + 1, (torch.tensor(0),))


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_select_lowering_keeps_bits(dtype: torch.dtype, value: bool) -> None:
    one, other, memory = special(dtype), special(dtype).flip(0), special(dtype)

    def write() -> torch.Tensor:
        memory.zero_()
        return one.clone()

    with SelectLowering(CPU).active():
        result = grape.cond(torch.tensor(value), write, lambda: other.clone())
    assert bits(result) == bits(one if value else other)
    assert bits(memory) == bits(torch.zeros(4, dtype=dtype) if value else special(dtype))


@pytest.mark.parametrize("index", [1, 7])
def test_a_body_that_does_not_count_cannot_fail(index: int) -> None:
    table, position = torch.arange(4.0), torch.tensor(index)
    divisor = torch.tensor(index % 7)

    def look_up() -> torch.Tensor:
        return table[position[None]][0] + table.index_select(0, position[None])[0] + torch.tensor(6) // divisor

    with SelectLowering(CPU).active():
        result = grape.cond(position < 4, look_up, lambda: torch.tensor(-1.0))
    assert result.item() == (8.0 if index == 1 else -1.0)


REFUSED: list[tuple[str, Callable[[], Any], Callable[[], Any], str]] = [
    ("shapes", lambda: torch.zeros(2), lambda: torch.zeros(3), r"different shape: \(2,\) and \(3,\)"),
    ("dtypes", lambda: torch.zeros(2), lambda: torch.zeros(2, dtype=torch.int64), "different dtype"),
    ("strides", lambda: torch.zeros(2, 3), lambda: torch.zeros(3, 2).t(), "different strides"),
    ("numbers", lambda: 1, lambda: 2, r"different Python values \(1 and 2\)"),
    ("types", lambda: None, lambda: torch.zeros(1, 1), "a NoneType, the other a Tensor"),
    ("lists", lambda: [1], lambda: [2], "two list objects"),
    ("lengths", lambda: (1, 2), lambda: (1,), "tuples of 2 and 1 values"),
    ("random", lambda: torch.rand(2), lambda: torch.zeros(2), "draws random numbers"),
    ("read", lambda: torch.zeros(()).item(), lambda: 0.0, "reads a tensor's value on the host"),
    ("shape of data", lambda: torch.zeros(2).nonzero(), lambda: torch.zeros(0, 1), "depends on data"),
    ("unknown", lambda: torch.linalg.cholesky_ex(torch.eye(2))[0], lambda: torch.eye(2), "it is not known"),
    ("gradient", lambda: torch.ones(2, requires_grad=True) * 2, lambda: torch.zeros(2), "need gradients"),
]


@pytest.mark.parametrize(("true_fn", "false_fn", "why"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_select_lowering_refuses(true_fn: Callable[[], Any], false_fn: Callable[[], Any], why: str) -> None:
    with pytest.raises(CaptureFailed, match=why), SelectLowering(CPU).active():
        grape.cond(torch.tensor(True), true_fn, false_fn)


def test_shapes_change_in_place_only_for_the_own_tensors_of_a_body() -> None:
    x = torch.ones(1, 2)
    with SelectLowering(CPU).active():
        assert grape.cond(torch.tensor(True), lambda: (x + 1).squeeze_(0), lambda: x[0] * 1).shape == (2,)
    with pytest.raises(CaptureFailed, match="changes the shape"), SelectLowering(CPU).active():
        grape.cond(torch.tensor(True), lambda: x.squeeze_(0), lambda: x)


def test_writing_to_what_may_be_shared_is_refused() -> None:
    x, y = torch.zeros(2), torch.ones(2)
    for write_to_merged in (True, False):
        with pytest.raises(CaptureFailed, match="shares memory"), SelectLowering(CPU).active():
            picked = grape.cond(torch.tensor(True), lambda: x, lambda: y)
            assert picked.tolist() == [0, 0]
            (picked if write_to_merged else x).add_(1)
    with SelectLowering(CPU).active():
        fresh = grape.cond(torch.tensor(True), lambda: x + 1, lambda: y + 1)
        fresh.add_(1)
    assert fresh.tolist() == [2, 2]


def test_a_loop_that_only_data_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "MAX_ITERATIONS", 5)
    with pytest.raises(CaptureFailed, match="only data ends"), SelectLowering(CPU).active():
        grape.while_loop(lambda x: x.sum() < 3, lambda x: (x + 1,), (torch.zeros(()),))


@pytest.mark.parametrize("limit", [0, 2, 9])
def test_loop_bounded_by_the_host(limit: int) -> None:
    with SelectLowering(CPU).active():
        x, _ = flow.loop(
            lambda x, k: flow.both(x < limit, lambda: k < 4),
            lambda x, k: (x + 1, k + 1),
            (torch.tensor(0), 0),
            (True, False),
        )
    assert x.item() == min(limit, 4)


@pytest.mark.parametrize("cond", [True, False, torch.tensor(True), torch.tensor(False)])
def test_predicate_under_the_select_lowering(cond: Any) -> None:
    memory = torch.tensor([NAN, -0.0])
    with SelectLowering(CPU).active(), grape.Predicate(cond):
        memory.zero_()
    assert bits(memory) == bits(torch.zeros(2) if bool(cond) else torch.tensor([NAN, -0.0]))


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_checks_are_raised_later(value: float) -> None:
    lowering = SelectLowering(CPU)
    x = torch.tensor(value)
    with lowering.active():
        assert flow.check(x > 0, "x must be positive")
        grape.cond(x > 5, lambda: bool(flow.check(x > 100)), lambda: True)
    assert len(lowering.checks) == 2 and lowering.checks[0].file == __file__
    assert [check.text for check in lowering.checks if bool(check.failed)] == (
        [] if value > 0 else ["x must be positive"]
    )


def test_select_lowering_within_a_capture_of_the_tape() -> None:
    backend = ReferenceBackend()
    x, memory = torch.tensor([2.0, -0.0]), torch.zeros(2)

    def write() -> torch.Tensor:
        memory.add_(x)
        return x * 2

    def body() -> torch.Tensor:
        with SelectLowering(CPU).active():
            result: torch.Tensor = grape.cond(x.sum() > 0, write, lambda: x - 1)
            return result

    with torch.no_grad():
        graph, result = backend.capture(body)
        for values, expected, left in (([2.0, -0.0], [4.0, -0.0], [2.0, 0.0]), ([-3.0, NAN], [-4.0, NAN], [2.0, 0.0])):
            x.copy_(torch.tensor(values))
            graph.replay()
            assert bits(result) == bits(torch.tensor(expected))
            assert memory.tolist() == left
    graph.release()
    backend.close()
