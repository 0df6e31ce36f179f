"""Conditional bodies of the tape: decided at each replay, nested, and held to a conditional node's rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from grape.runtime.backends.protocol import CaptureFailed
from grape.runtime.backends.reference.backend import ReferenceBackend


@pytest.fixture
def backend() -> Iterator[ReferenceBackend]:
    made = ReferenceBackend(poison=True)
    yield made
    made.close()


pytestmark = pytest.mark.usefixtures("without_gradients")


def test_an_if_body_runs_only_where_its_condition_is_true_at_replay(backend: ReferenceBackend) -> None:
    x, memory = torch.tensor(1.0), torch.zeros(2)

    def body() -> torch.Tensor:
        with backend.if_body(x > 0):
            memory.add_(x)
        return memory * 1

    graph, result = backend.capture(body)
    assert memory.tolist() == [0, 0]
    for value, expected in ((1.0, 1.0), (-1.0, 1.0), (5.0, 6.0), (-7.0, 6.0)):
        x.fill_(value)
        graph.replay()
        assert memory.tolist() == [expected] * 2 == result.tolist()
    assert graph.nodes == 4


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_bodies_nest(backend: ReferenceBackend, outer: bool, inner: bool) -> None:
    one, other, memory = torch.tensor(True), torch.tensor(True), torch.zeros(3)

    def body() -> None:
        with backend.if_body(one):
            memory[0] = 1
            with backend.if_body(other):
                memory[1] = torch.tensor(2.0)
            memory[2] = 3

    graph, _ = backend.capture(body)
    one.fill_(outer)
    other.fill_(inner)
    graph.replay()
    assert memory.tolist() == ([1, 2 * inner, 3] if outer else [0, 0, 0])
    assert graph.constant_bytes >= 4


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_a_while_body_runs_until_it_clears_its_condition(backend: ReferenceBackend, limit: int) -> None:
    bound, step = torch.tensor(limit), torch.tensor(2)

    def body() -> torch.Tensor:
        count, on = torch.zeros_like(bound), bound > 0
        kept = step * 3
        with backend.while_body(on):
            count.add_(kept)
            del kept  # its memory must not be used again before the last iteration
            scratch = count * 0 + 99
            torch.lt(count, bound * 6 + scratch - 99, out=on)
        return count

    graph, count = backend.capture(body)
    for _ in range(2):
        graph.replay()
        assert count.item() == 6 * limit


def test_a_while_body_with_an_if_body(backend: ReferenceBackend) -> None:
    x = torch.tensor(27)

    def collatz() -> torch.Tensor:
        value, steps = x.clone(), torch.zeros_like(x)
        on = value != 1
        with backend.while_body(on):
            odd = value % 2 == 1
            with backend.if_body(odd):
                value.mul_(3).add_(1)
            with backend.if_body(odd.logical_not()):
                value.floor_divide_(2)
            steps.add_(1)
            torch.ne(value, 1, out=on)
        return steps

    graph, steps = backend.capture(collatz)
    for start, expected in ((27, 111), (1, 0), (6, 8)):
        x.fill_(start)
        graph.replay()
        assert steps.item() == expected


def test_random_operators_are_refused_in_a_body(backend: ReferenceBackend) -> None:
    x = torch.ones(4)

    def body() -> None:
        with backend.if_body(x[0] > 0):
            x.bernoulli_(0.5)

    with pytest.raises(CaptureFailed, match=r"draws random numbers in a conditional body"):
        backend.capture(body)
    assert x.tolist() == [1, 1, 1, 1]

    def attention() -> torch.Tensor:
        q = x.reshape(1, 1, 2, 2)
        with backend.if_body(x[0] > 0):
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    graph, result = backend.capture(attention)
    graph.replay()
    assert result.flatten().tolist() == [1, 1, 1, 1]


def test_host_reads_are_refused_in_a_body(backend: ReferenceBackend) -> None:
    x = torch.ones(4)

    def body() -> None:
        with backend.while_body(x[0] > 0):
            x.sum().item()

    with pytest.raises(CaptureFailed) as caught:
        backend.capture(body)
    assert caught.value.code == "GR101"


@pytest.mark.parametrize("pred", [torch.ones(1, dtype=torch.bool), torch.tensor(1)])
def test_a_condition_is_one_bool(backend: ReferenceBackend, pred: torch.Tensor) -> None:
    def body() -> None:
        with backend.if_body(pred):
            pass

    with pytest.raises(CaptureFailed, match="bool tensor without dimensions"):
        backend.capture(body)


def test_a_body_outside_of_a_capture_is_refused(backend: ReferenceBackend) -> None:
    with pytest.raises(CaptureFailed, match="outside of a capture"), backend.if_body(torch.tensor(True)):
        pass


def test_an_exception_in_a_body_leaves_the_backend_usable(backend: ReferenceBackend) -> None:
    x = torch.tensor(1.0)

    def broken() -> None:
        with backend.if_body(x > 0):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        backend.capture(broken)
    graph, result = backend.capture(lambda: x + 1)
    graph.replay()
    assert result.item() == 2
