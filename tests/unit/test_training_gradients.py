"""What a captured call makes, reads and leaves in `.grad`; what differs from the eager run is refused (R20, R22)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch.nn import functional as F

from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.training import GradientCapture
from tests.property.programs import World
from tests.unit.test_training import accumulating, batch, refusal, replaying, replays_of, training

pytestmark = pytest.mark.usefixtures("without_eager_calls_in_between")


def test_r20_autograd_sees_that_a_gradient_which_it_saved_was_accumulated_into() -> None:
    twins = training(accumulating)
    twins.calls_of(batch, 12)
    products = [(torch.ones(5, 4, requires_grad=True) * w.net[0].weight.grad).sum() for w in (twins.eager, twins.world)]
    assert replays_of(twins, 1) == 1
    for product in products:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


def test_r20_a_gradient_that_is_read_and_replaced_stays_as_it_was_for_its_holder() -> None:
    def build(w: World) -> Callable[..., Any]:
        net = w.net

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            for p in net.parameters():
                p.grad = p.grad * 0.5 + x.sum()
            return x + y.sum()

        return step

    twins = training(build)
    twins.both(lambda w: F.mse_loss(w.net(batch(w)[0][0]), batch(w)[0][1]).backward())
    held: list[tuple[Any, Any]] = []
    for _ in range(16):
        gradients = [p.grad for p in twins.world.net.parameters()]
        held += [(gradient, gradient.clone()) for gradient in gradients]
        twins.call(batch)
        assert all(torch.equal(gradient, copy) for gradient, copy in held)


def _named(w: World) -> None:
    w.net[0].weight.grad.note = "seen"


@pytest.mark.parametrize("change", [_named, lambda w: w.net[0].weight.grad.requires_grad_()])
def test_what_was_done_to_the_last_gradient_is_not_seen_on_the_next(change: Callable[[World], Any]) -> None:
    twins = replaying()
    twins.both(lambda w: (change(w), None)[1])
    assert replays_of(twins, 1) == 1
    for w in (twins.eager, twins.world):
        gradient = w.net[0].weight.grad
        assert not vars(gradient) and not gradient.requires_grad


def _from_outside(w: World) -> Callable[..., Any]:
    net, buffers = w.net, [torch.ones(5, 4), torch.zeros(5, 4)]

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        net[0].weight.grad = buffers[0 if net[0].weight.grad is None else 1]
        return net(x).detach() + y

    return step


def _set_again(w: World) -> Callable[..., Any]:
    net, fixed = w.net, torch.ones(5, 4)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        net[0].weight.grad = fixed
        return net(x).detach() + y

    return step


def _set_again_and_read(w: World) -> Callable[..., Any]:
    net, fixed = w.net, torch.ones(5, 4)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        net[0].weight.grad = fixed
        return net(x).detach() + y + net[0].weight.grad.sum()

    return step


def _returned(w: World) -> Callable[..., Any]:
    net = w.net

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        net.zero_grad()
        F.mse_loss(net(x), y).backward()
        return net[0].weight.grad

    return step


def _shared(w: World) -> Callable[..., Any]:
    net = w.net

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        both = net[0].bias.detach() * x.sum() + y.sum()
        net[0].bias.grad, net[2].bias.grad = both, both[:2]
        return net(x).detach()

    return step


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (_set_again, "what it leaves in `.grad` differs between two runs of the same call"),
        (
            _set_again_and_read,
            "the call changes the memory of a parameter, buffer or other tensor that the region reads",
        ),
        (_returned, "it returns the memory of a gradient"),
        (_shared, "two gradients share memory"),
    ],
)
def test_gradients_that_a_replay_could_not_leave_as_eager_does_are_refused(
    step: Callable[[World], Callable[..., Any]], why: str
) -> None:
    twins = training(step)
    refused = refusal(twins)
    assert refused.code in ("GR404", "GR405") and why in refused.why
    twins.both(lambda w: setattr(w.net[0].weight, "grad", torch.full((5, 4), 7.0)))
    twins.calls_of(batch, 3)


def test_a_gradient_from_outside_that_is_set_where_none_was_is_refused() -> None:
    twins = training(_from_outside)
    for _ in range(12):
        twins.call(batch)
        twins.both(lambda w: setattr(w.net[0].weight, "grad", None))
    assert twins.replays == 0 and "it sets `.grad` to a tensor that it did not make" in twins.refused.why


def test_r21_no_node_of_a_parameters_gradient_outlives_the_eager_call_that_made_it() -> None:
    twins = training()
    for _ in range(4):
        result = twins.call(batch)
    pending, variables = [result.grad_fn], []
    while pending:
        node = pending.pop()
        variables.append(getattr(node, "variable", None))
        pending += [following for following, _ in node.next_functions if following is not None]
    parameters = {*map(id, twins.world.net.parameters())}
    assert twins.replays == 0 and len(variables) > 1 and not parameters.intersection(map(id, variables))


def test_a_step_under_an_autocast_that_it_did_not_enter_is_refused() -> None:
    twins = training(accumulating)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "autocast is entered outside of what calls backward" in refusal(twins).why


LEFT: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[torch.Tensor], Any]]] = {
    "made, then not": (lambda g: torch.ones(2), lambda g: None),
    "dropped, then made": (lambda g: None, lambda g: torch.ones(2)),
    "dropped, then left": (lambda g: None, lambda g: g),
    "left, then dropped": (lambda g: g, lambda g: None),
    "left, then replaced": (lambda g: g, lambda g: torch.ones(2)),
    "replaced, then left": (lambda g: torch.ones(2), lambda g: g),
    "replaced by one of another layout": (lambda g: torch.ones(2), lambda g: torch.ones(2, 2)[:, 0]),
    "replaced by one with a graph": (lambda g: torch.ones(2), lambda g: torch.ones(2, requires_grad=True)),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_captured_run_that_leaves_another_gradient_than_the_eager_one_is_noticed(name: str) -> None:
    """No operator tells the two runs apart; the eager one's gradient stays."""
    in_eager, in_capture = LEFT[name]
    leaf = torch.zeros(2, requires_grad=True)
    leaf.grad = torch.full((2,), 3.0)
    capture = GradientCapture([("p", leaf)], ReferenceBackend())
    eager = leaf.grad = in_eager(leaf.grad)
    capture.note()
    assert capture.prepare() is None
    capture.enter()
    captured = leaf.grad = in_capture(leaf.grad)
    capture.finish()
    capture.restore()
    assert leaf.grad is eager
    born = {captured.untyped_storage()._cdata} if captured is not None else set()
    refused = capture.compare(born, ())
    assert refused is not None and refused.code == "GR404"


def test_a_captured_run_that_leaves_what_the_eager_one_left_is_accepted() -> None:
    leaf = torch.zeros(2, requires_grad=True)
    capture = GradientCapture([("p", leaf)], ReferenceBackend())
    leaf.grad = torch.ones(2)
    capture.note()
    assert capture.prepare() is None
    capture.enter()
    captured = leaf.grad = torch.full((2,), 5.0)
    capture.finish()
    capture.restore()
    assert capture.compare({captured.untyped_storage()._cdata}, ()) is None
    assert torch.equal(leaf.grad, torch.ones(2)) and [g.tolist() for _, g in capture.pairs()] == [[5.0, 5.0]]
