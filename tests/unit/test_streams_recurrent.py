"""Recurrent layers as cuDNN has them: what their schemas leave out, and the tensor that all weights are each time.

cuDNN's operators have no kernel for the CPU: a stand-in has one, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch.nn import functional as F

from tests.processes import in_a_fork
from tests.property.stream_programs import device, needs_compiler  # noqa: F401
from tests.unit import recurrent_stand_in
from tests.unit.test_streams_contract import agrees

pytestmark = needs_compiler

STEPS, BATCH, WIDTH, HIDDEN = 5, 4, 16, 8
RANDOM, METADATA, ALIASED = "random numbers", "changes metadata", "other aliases than recorded"


class Layer:
    """One recurrent layer whose weights lie in one piece, called as torch's own code calls cuDNN's."""

    def __init__(self, dropout: float = 0.0) -> None:
        self.flat = torch.randn(HIDDEN * (WIDTH + HIDDEN)) * 0.3
        first, second = self.flat[: HIDDEN * WIDTH], self.flat[HIDDEN * WIDTH :]
        views = (first.view(HIDDEN, WIDTH), second.view(HIDDEN, HIDDEN))
        self.weights = [view.detach().requires_grad_() for view in views]
        self.dropout, self.state, self.train = dropout, torch.ones(8), True
        self.lengths: list[int] = []

    def __call__(self, x: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
        shape = (0, HIDDEN, 0, 1, False)
        end = (self.dropout, self.train, False, self.lengths, self.state)
        return torch._cudnn_rnn(x, self.weights, 2, self.buffer(), hidden, None, *shape, *end)

    def buffer(self) -> Tensor:
        return torch.empty(0).set_(self.flat, 0, self.flat.shape, (1,))

    def left(self) -> list[Any]:
        return [self.flat, [w.grad for w in self.weights], self.state]


def training(layer: Layer, *, iterations: int = 60, backward: bool = True) -> list[Any]:
    xs, hidden, losses = torch.randn(7, STEPS, BATCH, WIDTH), torch.zeros(1, BATCH, HIDDEN), []
    optimizer = torch.optim.Adam(layer.weights, 1e-2)
    for i in range(iterations):
        output, last, *_, reserve, weights = layer(xs[i % 7], hidden)
        loss = F.mse_loss(output.tanh(), torch.ones_like(output)) + last.mean()
        if backward:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses += [loss.detach(), reserve, weights.sum().item()]
    return [losses, layer.left(), optimizer.state_dict()]


def beside_the_stand_in(test: Callable[[], None]) -> None:
    def run() -> None:
        recurrent_stand_in.load()
        test()

    in_a_fork(run)


def test_a_layer_without_dropout_is_deferred_forward_and_backward() -> None:
    @beside_the_stand_in
    def _() -> None:
        evidence = agrees(lambda: training(Layer()))
        assert not {RANDOM, METADATA, ALIASED} & set(evidence.written), evidence.written
        assert evidence.matched > 0.7 * evidence.seen


def test_a_layer_with_dropout_draws_forward_only() -> None:
    """The state of its dropout is a tensor that it is given, and changes, and no generator tells of it."""

    @beside_the_stand_in
    def _() -> None:
        evidence = agrees(lambda: training(Layer(0.5)))
        assert 0 < evidence.written[RANDOM] <= 60
        assert not {METADATA, ALIASED} & set(evidence.written), evidence.written


@pytest.mark.parametrize("at", [0, 30])
def test_a_layer_that_does_not_train_draws_nothing(at: int) -> None:
    """And does once it trains again: whether it does is a number that is compared."""

    @beside_the_stand_in
    def _() -> None:
        def loop() -> list[Any]:
            layer, out = Layer(0.5), []
            layer.train = False
            with torch.no_grad():
                x, hidden = torch.ones(STEPS, BATCH, WIDTH), torch.zeros(1, BATCH, HIDDEN)
                for i in range(60):
                    layer.train = at > 0 and i > at and i % 5 == 0
                    out.append(layer(x.mul(0.5), hidden)[0].tanh())
            return [out, layer.left()]

        written = agrees(loop).written
        assert not {RANDOM, METADATA, ALIASED} & set(written), written
        assert written.get("number changed", 0) > 20 if at else "number changed" not in written


def test_packed_sequences_run_as_written() -> None:
    """cuDNN reads their lengths where its caller has them, which a graph cannot."""

    @beside_the_stand_in
    def _() -> None:
        def loop() -> list[Any]:
            layer = Layer()
            layer.lengths = [BATCH] * STEPS
            return training(layer)

        written = agrees(loop).written
        assert written["a tensor on the CPU"] > 100  # both passes
        assert not {RANDOM, METADATA, ALIASED} & set(written), written


def test_what_a_forward_pass_kept_is_changed_by_the_backward_pass() -> None:
    """Also where it lies elsewhere each time, so that a copy is what is given to the operator."""

    @beside_the_stand_in
    def _() -> None:
        def loop() -> list[Any]:
            layer, out = Layer(), []
            x, hidden = torch.ones(STEPS, BATCH, WIDTH), torch.zeros(1, BATCH, HIDDEN)
            with torch.no_grad():
                output, _, _, kept, weights = layer(x, hidden)
                args = (2, weights, hidden, None, output, output, None, None, 0, HIDDEN, 0, 1, False, 0.0, True, False)
                places = [kept.clone() for _ in range(3)]
                for i in range(60):
                    place = places[i % 3]
                    given = torch.ops.aten._cudnn_rnn_backward(x, layer.weights, *args, [], None, place, [True] * 4)
                    out.append([torch.tanh(given[1]), place[1:] * 2])
            return [out, places]

        assert agrees(loop).matched > 60


def test_weights_that_come_back_are_the_tensor_that_was_given() -> None:
    @beside_the_stand_in
    def _() -> None:
        def loop() -> list[Any]:
            layer, out = Layer(), []
            x, hidden = torch.ones(STEPS, BATCH, WIDTH), torch.zeros(1, BATCH, HIDDEN)
            with torch.no_grad():
                for _ in range(40):
                    buffer = layer.buffer()
                    shape = (0, HIDDEN, 0, 1, False, 0.0, True, False, [], None)
                    *_, weights = torch._cudnn_rnn(x, layer.weights, 2, buffer, hidden, None, *shape)
                    out.append([weights is buffer, weights.mul_(0.99).clone(), buffer._version])
            return [out, layer.left()]

        agrees(loop)


@pytest.mark.parametrize("switch", ["evaluated first", "left before it is issued", "by turns"])
def test_layers_of_the_cpu_ask_whether_gradients_are_recorded(switch: str) -> None:
    """oneDNN's makes a workspace where they are, and computes with other bits where they are not."""
    torch.manual_seed(0)
    layer, batches = nn.LSTM(6, HIDDEN, 2), torch.randn(120, STEPS, BATCH, 6)

    def loop() -> list[Any]:
        out: list[Any] = []
        for number, x in enumerate(batches):
            records = {"evaluated first": number >= 60, "by turns": number % 3 == 0}.get(switch, number % 2 == 0)
            with torch.set_grad_enabled(records):
                result = layer(x)[0]
            if result.requires_grad:
                out += torch.autograd.grad(result.sum(), list(layer.parameters()))
            out.append(result.detach())
        return out

    assert agrees(loop).matched > 0
