"""`set_`: a tensor refers to another storage. One more view, unless memory has to grow: nothing pending is cut by it.

Each test is a loop that leaves the same bits, versions and errors as eager code.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from torch import Tensor

from grape.streams import Evidence
from tests.property.stream_programs import device, needs_compiler  # noqa: F401
from tests.unit.test_streams_contract import agrees, chain

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]

METADATA = "changes metadata"
LENGTH = 16  # 64 bytes of float32, the alignment


def fresh() -> Tensor:
    return torch.empty(0)


class Changing:
    """Makes results that are others each time, of memory that is the same."""

    def __init__(self) -> None:
        self.x = torch.linspace(0.1, 1, LENGTH)

    def __call__(self) -> Tensor:
        return chain(self.x.mul_(0.97))


REFERS: dict[str, Callable[[Tensor], Tensor]] = {
    "a tensor": lambda t: fresh().set_(t),
    "a tensor, by numbers": lambda t: fresh().set_(t, 0, t.shape, t.stride()),
    "in one piece": lambda t: fresh().set_(t, 0, t.shape),
    "half of it": lambda t: fresh().set_(t, LENGTH // 2, (LENGTH // 2,), (1,)),
    "each other one": lambda t: fresh().set_(t, 0, (LENGTH // 2,), (2,)),
    "no element": lambda t: fresh().set_(t, 3, (0,), (1,)),
    "nothing": lambda t: t.clone().set_(),
    "overlapping": lambda t: fresh().set_(t, 0, (3, 4), (2, 1)),
}


def is_a_view(loop: Callable[[], Any]) -> Evidence:
    evidence = agrees(loop)
    assert METADATA not in evidence.written
    return evidence


def nothing_was_cut(loop: Callable[[], Any]) -> Evidence:
    evidence = is_a_view(loop)
    assert evidence.diverged < 5
    assert evidence.partial < 5
    return evidence


@pytest.mark.parametrize("refers", REFERS.values(), ids=REFERS)
def test_to_what_is_pending(refers: Callable[[Tensor], Tensor]) -> None:
    """What is read and written through either tensor is the same memory, in the order of the code."""

    def loop() -> list[Any]:
        make, out = Changing(), []
        for _ in range(40):
            made = make()
            other = refers(made)
            made.mul_(1.5)
            before = other * 2
            if not other._is_view() and other.dim() == 1:
                other.add_(0.25)
            out.append([before, made + 1, other, other._version, other.stride(), other.storage_offset()])
        return out

    nothing_was_cut(loop)


@pytest.mark.parametrize("refers", REFERS.values(), ids=REFERS)
def test_to_memory_from_outside_that_is_changed_in_each_iteration(refers: Callable[[Tensor], Tensor]) -> None:
    def loop() -> list[Any]:
        flat, out = torch.linspace(0, 1, LENGTH), []
        for _ in range(40):
            y = torch.tanh(refers(flat) * 0.5)
            flat.mul_(0.9).add_(0.01)
            out.append([y, refers(flat).sum()])
        return [out, flat]

    nothing_was_cut(loop)


def test_of_a_result_that_is_pending() -> None:
    """Its memory is not lost for its views, and goes where nobody has it: that is its home's again."""

    def loop() -> list[Any]:
        make, flat, out = Changing(), torch.linspace(0, 1, LENGTH), []
        for i in range(60):
            made = make()
            view, version = made[2:], made._version
            made.set_(flat)
            later = made * 2 + 1  # of `flat`
            view.mul_(3)  # of what `made` was
            out.append([later, view.sum(), made._version - version])
            if i % 3 == 0:
                out.append(view)
        return out

    nothing_was_cut(loop)


def test_who_refers_to_a_result_lives_in_its_home() -> None:  # H1
    def loop() -> list[Any]:
        make, kept, out = Changing(), [], []
        for i in range(40):
            other = fresh()
            other.set_(make(), 4, (8,), (1,))  # nobody else has the result any more
            if i % 4 == 1:
                kept.append(other)
            out.append(other.sum())
        return [out, kept]

    nothing_was_cut(loop)


def test_one_tensor_to_other_memory_at_each_step() -> None:  # E2
    def loop() -> list[Any]:
        rows, moved, out = torch.linspace(0, 1, 4 * LENGTH).view(4, LENGTH), fresh(), []
        for i in range(60):
            moved.set_(rows[i % 4])
            moved.mul_(0.9)
            out.append([torch.tanh(moved), rows.sum()])
        return [out, rows]

    is_a_view(loop)


def test_two_tensors_exchange_their_memory() -> None:
    def loop() -> list[Any]:
        a, b, out = torch.full((LENGTH,), 0.5), torch.full((LENGTH,), 0.25), []
        for i in range(60):
            a.mul_(0.9)
            b.add_(a)
            if i % 7 == 6:
                held = fresh().set_(a)
                a.set_(b)
                b.set_(held)
            out.append([a - b, a.sum()])
        return [out, a, b]

    is_a_view(loop)


def test_memory_that_has_to_grow_is_not_deferred() -> None:
    """What it held is copied: that is a read of what is pending."""

    def loop() -> list[Any]:
        make, out = Changing(), []
        for _ in range(40):
            made = make()
            larger = fresh().set_(made, 0, (2 * LENGTH,), (1,))
            larger[LENGTH:].fill_(0.5)
            out.append([larger * 2, made + 1])
        return out

    assert agrees(loop).written[METADATA] > 30


@pytest.mark.parametrize("sizes", [(LENGTH + 1,), (2, LENGTH), (3, LENGTH // 2)])
def test_memory_that_has_to_grow_once(sizes: tuple[int, ...]) -> None:
    def loop() -> list[Any]:
        make, out = Changing(), []
        for i in range(40):
            made = make()
            other = fresh().set_(made, 0, sizes if i % 9 == 8 else (LENGTH,))
            other.view(-1)[LENGTH:].fill_(0.5)
            out.append([torch.tanh(other), made * 2])
            del made, other  # so that the next ones are in homes, which have no more room
        return out

    agrees(loop)


def test_a_larger_type_has_less_room() -> None:
    """The same storage holds half as many doubles: sizes that fit as floats make it grow."""

    def loop() -> list[Any]:
        make, out = Changing(), []
        for _ in range(40):
            storage = make().untyped_storage()
            whole = torch.empty(0, dtype=torch.float64).set_(storage)  # type: ignore[call-overload]
            more = torch.empty(0, dtype=torch.float64).set_(storage, 0, (LENGTH,), (1,))  # type: ignore[call-overload]
            out.append([whole.shape, whole.clone(), more[: LENGTH // 2].clone(), len(storage)])
        return out

    assert agrees(loop).written[METADATA] > 30


@pytest.mark.parametrize("held", [True, False])
def test_a_storage_that_python_holds(held: bool) -> None:  # E4
    def loop() -> list[Any]:
        out = []
        for _ in range(40):
            made = torch.ones(LENGTH)
            storage: Any = made.untyped_storage()
            other = fresh().set_(storage)
            if not held:
                del storage
            other.mul_(0.5)
            if held:
                out.append(bytes(storage))
            out.append([torch.tanh(made), other])
        return out

    agrees(loop)


def test_memory_of_numpy() -> None:  # E4
    def loop() -> list[Any]:
        make, out = Changing(), []
        for i in range(40):
            array = np.full(LENGTH, 0.25 * (i % 3), dtype=np.float32)
            other = fresh().set_(torch.from_numpy(array))
            other.add_(make())
            out.append([array.copy(), other * 2])
        return out

    agrees(loop)


@pytest.mark.parametrize(
    "numbers", [(-1, (4,), (1,)), (0, (-4,), (1,)), (0, (4,), (-1,)), (0, (4, 2), (1,)), (2**62, (4,), (1,))]
)
def test_numbers_that_are_none(numbers: tuple[Any, ...]) -> None:
    def loop() -> list[Any]:
        make, out = Changing(), list[Any]()
        for i in range(40):
            made = make()
            try:
                out.append(fresh().set_(made, *(numbers if i % 3 == 2 else (0, (4,), (1,)))))
            except RuntimeError as error:
                out.append(str(error).splitlines()[0])
            out.append(made * 2)
        return out

    agrees(loop)


def test_a_tensor_that_a_backward_pass_needs() -> None:
    """Its version tells that it refers to something else."""

    def loop() -> list[Any]:
        x, out = torch.ones(LENGTH, requires_grad=True), list[Any]()
        for i in range(40):
            y = (x * 0.5).exp()
            loss = (y * 2).sum()
            if i % 4 == 3:
                y.detach().set_(torch.ones(LENGTH))  # of another tensor: nothing is changed
            if i % 4 == 1:
                with torch.no_grad(), suppress(RuntimeError):
                    y.set_(torch.ones(LENGTH))
            try:
                loss.backward()
            except RuntimeError as error:
                out.append(str(error).splitlines()[0])
            out += [x.grad, loss.detach()]
        return out

    agrees(loop)


def test_parameters_of_an_optimizer_refer_to_other_weights() -> None:
    def loop() -> list[Any]:
        torch.manual_seed(0)
        net, x = torch.nn.Linear(LENGTH, 4), torch.randn(8, LENGTH)
        optimizer, out = torch.optim.Adam(net.parameters(), 1e-2), []
        average = [p.detach().clone() for p in net.parameters()]
        for i in range(60):
            optimizer.zero_grad()
            loss = net(x).tanh().square().mean()
            loss.backward()
            optimizer.step()
            out.append(loss.detach())
            with torch.no_grad():
                for mean, p in zip(average, net.parameters(), strict=True):
                    mean.lerp_(p, 0.1)
                if i % 8 == 7:
                    for mean, p in zip(average, net.parameters(), strict=True):
                        p.set_(mean.clone())
        return [out, average, list(net.parameters()), optimizer.state_dict()]

    is_a_view(loop)


def test_while_a_graph_of_another_pass_is_frozen() -> None:  # G1
    """The memory that is referred to is another one after a while, and stays there."""

    def loop() -> list[Any]:
        places, out = [torch.linspace(0, k, LENGTH) for k in range(1, 4)], []
        for i in range(90):
            weights = fresh().set_(places[i // 30], 0, (LENGTH,), (1,))
            y = torch.tanh(weights * 0.5)
            weights.mul_(0.99)
            out.append(y)
        return [out, places]

    nothing_was_cut(loop)
