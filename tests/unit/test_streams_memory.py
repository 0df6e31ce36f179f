"""Whose memory it is: what is pending reads what it was given, wherever that goes, and writes nobody else's.

Each test is a loop whose iterations do the same operators over other memory at times. The invariants are those of
grape/streams/OWNERSHIP.md.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

from tests.processes import in_a_fork
from tests.property.stream_programs import device, needs_compiler  # noqa: F401
from tests.unit.test_streams_contract import EAGER_TO_MATCH, agrees, under_a_stream

pytestmark = needs_compiler


def test_what_pending_operators_read_stays_until_they_are_issued() -> None:  # E3
    def loop() -> list[Any]:
        out = []
        for i in range(40):
            x = torch.tensor([float(i), 2.0, 3.0, 4.0])
            y = torch.tanh(x * 0.1)
            del x
            z = torch.tensor([-1.0, -2.0, -3.0, -4.0])  # where `x` was, without an operator
            out.append([y + z, z])
        return out

    agrees(loop)


def test_a_result_that_was_freed_is_not_taken_for_another_at_its_address() -> None:  # E2
    fixed, z, y0 = torch.full((4,), 0.25), torch.full((4,), 0.5), torch.ones(4)

    def loop() -> list[Any]:
        out: list[Any] = []
        y: Any = y0 * 1.0
        for i in range(60):
            a = torch.tanh(y)
            y = None  # pending operators read it; the storage of `b` may be made where its was
            b = torch.sin(z)
            c = (b if i % 8 == 7 else fixed) * 2
            y = a + c
            out.append([y.sum().item(), b.mean().item()])
        return out

    agrees(loop)


def test_a_smaller_storage_in_the_place_of_a_larger_one() -> None:
    def loop() -> list[Any]:
        out: list[Any] = []
        for i in range(60):
            both = torch.tensor([float(i)] * 8)
            one, other = both[:4], both[4:]
            if i % 8 == 7:
                one, other = torch.tensor([float(i)] * 4), torch.tensor([2.0] * 4)
            one.add_(1)
            other.mul_(3)
            out.append([one, other])
        return out

    agrees(loop)


def test_a_home_is_not_overwritten_while_it_is_read() -> None:
    """Recorded with `c` and `y`; from then on `y` is read in the place of `c` and dies, and `t` is read in its."""
    z, c, t = torch.full((4,), 0.5), torch.full((4,), 0.1), torch.full((4,), 7.0)

    def loop() -> list[Any]:
        out: list[Any] = []
        for i in range(60):
            y: Any = torch.sin(z * (1 + i // 20))
            out.append(y.sum().item())
            if i < 8:
                a = torch.tanh(c)
                w = y * 2
            else:
                a = torch.tanh(y)
                y = None
                w = t * 2
            other = torch.tensor([-1.0] * 4)  # takes memory that is freed, without an operator
            out.append([(a + w).sum().item(), other])
        return out

    agrees(loop)


def test_running_statistics_of_one_network_and_another() -> None:
    """No schema says that batch norm changes them."""
    x = torch.randn(8, 4)

    def loop() -> list[Any]:
        nets = [torch.nn.BatchNorm1d(4) for _ in range(3)]
        return [[net(x * (i + 1)).detach(), net.running_mean + 0] for i in range(20) for net in nets]

    agrees(loop)


def test_an_operator_that_returns_what_it_was_given() -> None:
    def loop() -> list[Tensor]:
        out = []
        for i in range(40):
            x = torch.tanh(torch.full((4,), 0.1 * (i % 3)))
            same, mask = torch.native_dropout(x, 0.5, False)
            same.add_(1)
            out.append(x + mask)
        return out

    agrees(loop)


@pytest.mark.parametrize("refused", ["exposed", "aliased"])
def test_an_operator_that_is_refused_after_some_of_its_arguments_were_bound(refused: str) -> None:
    def loop() -> list[Any]:
        out: list[Any] = []
        for i in range(60):
            u, v = torch.tensor([float(i)] * 4), torch.tensor([1.0] * 4)
            w = torch.tanh(v)
            if i % 8 == 7:
                if refused == "exposed":
                    w.numpy()
                else:
                    w = u
            u.add_(w)
            out.append([u, w * 2, torch.addcmul(u, v, w)])
        return out

    agrees(loop)


def test_a_home_that_came_to_lie_where_an_input_had_lain_is_not_read_there(device: str) -> None:  # noqa: F811 - G3
    """The input dies right before a capture, which takes its memory for the home of `y`; then `y` is the input."""
    large = 1 << 18

    def loop(when: int) -> list[float]:
        out: list[float] = []
        shown, z = torch.full((large,), 0.75), torch.full((large,), 0.5)

        def step(box: list[Any]) -> Tensor:
            total = box.pop().sum()
            y = torch.sin(z)
            out.append((total * 2).item())
            return y

        box = [torch.full((large,), 0.25)]
        for _ in range(when):
            step(box[:])
        step(box)
        shown.numpy()  # what NumPy has is read as written
        box.append(step([shown]))
        for _ in range(3):
            box.append(step(box))
        return out

    def work() -> None:
        for steady in range(3):
            for when in range(2, 7):
                settings = replace(EAGER_TO_MATCH, steady=steady)
                assert under_a_stream(partial(loop, when), settings)[0] == loop(when)

    in_a_fork(work)


def test_gradients_that_were_not_deferred_add_in_place() -> None:
    """Autograd adds to a gradient in place where nobody else refers to its memory: else other operators would come."""
    torch.manual_seed(0)
    cell, second = nn.LSTMCell(1, 5).double(), nn.LSTMCell(5, 5).double()
    columns, parameters = torch.randn(3, 200, dtype=torch.float64), [*cell.parameters(), *second.parameters()]

    def loop() -> list[Any]:
        out = []
        for _ in range(6):
            h = c = torch.zeros(3, 5, dtype=torch.float64)
            state = (h, c)
            for column in columns.split(1, dim=1):
                h, c = cell(column, (h, c))
                state = second(h, state)
            out += torch.autograd.grad(state[0].sum(), parameters)
        return out

    evidence = agrees(loop, replace(EAGER_TO_MATCH, shortest=32, hot=3, settled=200, patience=500))
    assert evidence.diverged < 150
