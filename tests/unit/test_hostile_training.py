"""What people do to gradients, parameters and optimizers between two steps of a training region that replays."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import grape
from grape.sessions import close_engine
from tests.property.cell_loops import run_cell
from tests.property.programs import Twins, World, eager_to_graph, same
from tests.unit.test_training import accumulating, whole_step

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("without_eager_calls_in_between")]

X, Y = torch.linspace(-1, 1, 12).view(3, 4), torch.linspace(0, 1, 12).view(3, 4)


def batch(w: World) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (X, Y), {}


Step = Callable[[World], Callable[..., Any]]


def twins_of(step: Step) -> Twins:
    def build() -> World:
        net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        world = World(net=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
        world.function = step(world)
        return world

    return Twins(build)


def stepping(w: World) -> Callable[..., Any]:
    """The optimizer's step alone, on gradients that are there."""
    optimizer = w.optimizer
    F.mse_loss(w.net(X), Y).backward()

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.step()
        return x + y

    return step


def measuring(w: World) -> Callable[..., Any]:
    """Norms of gradients, with grad enabled."""
    net = w.net
    F.mse_loss(net(X), Y).backward()
    return lambda x, y: torch.stack([p.grad.norm() for p in net.parameters()]).sum() + y.sum()


def _set(w: World, gradient: torch.Tensor) -> None:
    w.net[0].weight.grad = gradient


def _shared(w: World) -> None:
    w.net[0].weight.grad = w.net[2].weight.grad = torch.ones(4, 4)


def _exported(w: World) -> None:
    gradient = w.net[0].weight.grad = w.net[0].weight.grad * 0.5
    w.exported = torch.from_dlpack(gradient)


def _of_inference(w: World) -> None:
    with torch.inference_mode():
        gradient = torch.ones(4, 4)
    _set(w, gradient)


def _swapped(w: World) -> None:
    one, other = w.net[0].weight, w.net[2].weight
    one.grad, other.grad = other.grad, one.grad


REPLACED: dict[str, tuple[Step, Callable[[World], Any]]] = {
    "one for two parameters": (accumulating, _shared),
    "one for two parameters, stepped": (stepping, _shared),
    "exported": (accumulating, _exported),
    "an array": (accumulating, lambda w: (_set(w, torch.ones(4, 4)), setattr(w, "a", w.net[0].weight.grad.numpy()))),
    "another parameter": (accumulating, lambda w: _set(w, w.net[2].weight)),
    "the parameter": (accumulating, lambda w: _set(w, w.net[0].weight.data)),
    "the momentum": (stepping, lambda w: _set(w, w.optimizer.state[w.net[0].weight]["momentum_buffer"])),
    "requires a gradient": (measuring, lambda w: _set(w, torch.ones(4, 4, requires_grad=True))),
    "comes to require a gradient": (measuring, lambda w: w.net[0].weight.grad.requires_grad_()),
    "expanded": (stepping, lambda w: _set(w, torch.ones(1).expand(4, 4).data)),
    "transposed": (accumulating, lambda w: _set(w, torch.arange(16.0).view(4, 4).t().data)),
    "of inference": (stepping, _of_inference),
    "swapped": (accumulating, _swapped),
}


@pytest.mark.parametrize("name", REPLACED)
def test_a_gradient_that_the_person_replaced(name: str) -> None:
    step, replace = REPLACED[name]
    twins = twins_of(step)
    twins.warm(batch, limit=12)
    twins.both(lambda w: (replace(w), None)[1])
    twins.calls_of(batch, 4)
    if name == "an array":
        for w in (twins.eager, twins.world):
            assert (w.a == w.net[0].weight.grad.numpy()).all()


def test_a_weak_reference_to_a_gradient_ends_with_it() -> None:
    twins = twins_of(whole_step)
    twins.warm(batch, limit=12)
    known = [weakref.ref(w.net[0].weight.grad) for w in (twins.eager, twins.world)]
    before = twins.replays
    twins.call(batch)
    assert twins.replays > before
    assert [reference() for reference in known] == [None, None]


def test_an_argument_keeps_the_gradient_that_a_call_leaves_on_it() -> None:
    def attack(w: World) -> Callable[..., Any]:
        net = w.net

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.requires_grad_(True)
            F.mse_loss(net(x), y).backward()
            x.requires_grad_(False)
            net.zero_grad()
            return x.grad.sign()  # type: ignore[union-attr]

        return step

    twins = twins_of(attack)
    for index in range(12):
        twins.call(lambda w, index=index: ((X + index, Y), {}))


def test_a_result_keeps_its_gradient() -> None:
    def made(w: World) -> Callable[..., Any]:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            z = torch.zeros(3, 4).requires_grad_()
            ((z + x) ** 2).sum().backward()
            return z.requires_grad_(False)

        return step

    twins_of(made).calls_of(batch, 12)


def test_a_result_that_retains_its_gradient() -> None:
    def retaining(w: World) -> Callable[..., Any]:
        net = w.net

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            net.zero_grad()
            out = net(x)
            out.retain_grad()
            F.mse_loss(out, y).backward()
            return out

        return step

    twins = twins_of(retaining)
    for _ in range(12):
        twins.call(batch)
        one, other = twins.last
        assert torch.equal(one.grad, other.grad) and one.retains_grad == other.retains_grad


@pytest.mark.parametrize("step", [accumulating, whole_step, stepping])
def test_parameters_may_be_swapped(step: Step) -> None:
    """`swap_tensors`, which conversions of modules use, refuses a tensor that anything refers to weakly."""
    twins = twins_of(step)
    twins.warm(batch, limit=12)
    twins.both(lambda w: torch.utils.swap_tensors(w.net[0].weight, nn.Parameter(torch.ones(4, 4))))
    twins.calls_of(batch, 6)


def test_hooks_on_saved_tensors_are_seen() -> None:
    twins = twins_of(whole_step)
    twins.warm(batch, limit=12)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor * 2, lambda tensor: tensor):
        twins.calls_of(batch, 3)
    twins.calls_of(batch, 2)


def test_a_search_for_anomalies_searches() -> None:
    twins = twins_of(whole_step)
    twins.warm(batch, limit=12)
    before = twins.replays
    with torch.autograd.set_detect_anomaly(True):
        twins.calls_of(batch, 2)
        with pytest.raises(RuntimeError, match="nan"):
            twins.graphed(X * float("nan"), Y)
    assert twins.replays == before


def _node(w: World) -> Any:
    weight = w.net[0].weight
    return weight.view_as(weight).grad_fn.next_functions[0][0]


@pytest.mark.parametrize("late", [False, True])
def test_a_hook_on_the_node_of_a_gradient(late: bool) -> None:
    nodes: list[Any] = []
    hits: list[int] = []

    def hook(w: World) -> None:
        nodes.append(_node(w))
        nodes[-1].register_prehook(lambda gradients: (gradients[0] * 3,))
        nodes[-1].register_hook(lambda before, after: hits.append(1))

    twins = twins_of(whole_step)
    if late:
        twins.warm(batch, limit=12)
    twins.both(hook)
    twins.calls_of(batch, 9)
    assert len(hits) == 2 * 9


def _decorated(w: World, decorate: Callable[[Any], Any]) -> Callable[..., Any]:
    net, scale = w.net, w.scale

    @decorate
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return net(x).detach() * scale[0]

    return lambda x, y: scaled(x) + y


DECORATORS: dict[str, Callable[[Any], Any]] = {
    "no_grad": torch.no_grad(),
    "inference_mode": torch.inference_mode(),
    "autocast": torch.autocast("cpu", torch.bfloat16),
    "two": lambda function: torch.no_grad()(torch.autocast("cpu", torch.bfloat16)(function)),
    "partial": lambda function: functools.partial(torch.no_grad()(function)),
}


@pytest.mark.parametrize("name", DECORATORS)
def test_state_that_is_read_below_a_decorator_of_a_library(name: str) -> None:
    def step(w: World) -> Callable[..., Any]:
        w.scale = [2.0]
        return _decorated(w, DECORATORS[name])

    twins = twins_of(step)
    twins.warm(batch, limit=12)
    twins.both(lambda w: w.scale.__setitem__(0, 3.0))
    twins.calls_of(batch, 4)


def test_an_effect_of_a_hook_of_many_gradients() -> None:
    def step(w: World) -> Callable[..., Any]:
        w.seen = []
        seen = w.seen
        torch.autograd.graph.register_multi_grad_hook([*w.net.parameters()], lambda gradients: seen.append(1))
        return whole_step(w)

    twins_of(step).calls_of(batch, 10)


def _counting(w: World, x: torch.Tensor, y: torch.Tensor) -> None:
    w.count.add_(1)


def _backward(w: World, x: torch.Tensor, y: torch.Tensor) -> None:
    F.mse_loss(w.net(x), y).backward()


@pytest.mark.parametrize("effect", [_counting, _backward])
@pytest.mark.parametrize("by_value", [False, True])
def test_a_call_that_fails_for_want_of_memory_has_its_effects_once(
    effect: Callable[[World, torch.Tensor, torch.Tensor], None], by_value: bool
) -> None:
    """What the graph knows to be harmless was captured in another state, or from other contents."""

    def step(w: World) -> Callable[..., Any]:
        net, flags = w.net, [False]
        w.flags, w.count = flags, torch.zeros(1)
        w.state = state = World(net=net, count=w.count)

        def call(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            out = net(x).detach()
            if flags[0] or (by_value and float(scale) > 1):
                effect(state, x, y)
                raise torch.OutOfMemoryError("as on a device")
            return out * 2

        return call

    twins = twins_of(step)
    twins.warm(lambda w: ((X, Y, torch.tensor(1.0)), {}), limit=12)
    region = twins.graphed._region
    assert region is not None
    region.context.observing = False
    if not by_value:
        twins.both(lambda w: w.flags.__setitem__(0, True))
    twins.call(lambda w: ((X, Y, torch.tensor(2.0)), {}))


def _detached(loss: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return loss, loss.detach()


def _expanded(loss: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (loss.expand(3), loss)


@pytest.mark.parametrize("results", [_detached, _expanded])
def test_a_consumed_result_that_shares_memory_with_another(
    results: Callable[[torch.Tensor], tuple[torch.Tensor, ...]],
) -> None:
    def step(w: World) -> Callable[..., Any]:
        net = w.net

        def call(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            net.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            return results(loss)

        return call

    twins = twins_of(step)
    twins.calls_of(batch, 12)
    assert results is _expanded or twins.replays


def test_a_loop_that_runs_again_in_another_namespace() -> None:
    """As `%run` does with a file: the names are new ones, and so are the model and its optimizer."""
    source = """for item in items:
    net[0].weight.mul_(0.99)
    b = net(a) * 0.5
    a = b + scale * item
"""
    try:
        for _ in range(2):
            plain, _ = run_cell(source, outline=False, times=2)
            with eager_to_graph():
                outlined, replays = run_cell(source, outline=True, times=2)
            assert replays and outlined.error is None
            same(plain.values, outlined.values)
    finally:
        close_engine()


@pytest.mark.parametrize("requires", [False, True])
def test_a_gradient_that_an_argument_gets_is_seen(requires: bool) -> None:
    """`.grad` of an argument may be asked for; a graph that found none serves no call that finds one."""

    def build() -> World:
        def read(x: torch.Tensor) -> torch.Tensor:
            y = torch.tanh(x * 2 + 1) @ torch.ones(4, 4)
            return y if x.grad is None else y + x.grad

        return World(x=X.clone().requires_grad_(requires), function=read)

    def some(w: World) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (w.x,), {}

    twins = Twins(build)
    with torch.no_grad():
        twins.calls_of(some, 14)
        assert twins.replays > 5
        for value in (5.0, 7.0):
            twins.both(lambda w, value=value: setattr(w.x, "grad", torch.full((3, 4), value)))
            twins.calls_of(some, 6)
        twins.both(lambda w: setattr(w.x, "grad", None))
        before = twins.replays
        twins.calls_of(some, 6)
    assert twins.replays == before + 6 or twins.refused is not None


@pytest.mark.parametrize("none", [True, False], ids=["made anew", "accumulated"])
def test_a_gradient_made_in_inference_mode_is_as_in_eager(none: bool) -> None:
    """torch refuses to accumulate into it, and before that nothing has changed."""

    def step(net: torch.nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, more: bool) -> torch.Tensor:
        if not more:
            opt.zero_grad(set_to_none=none)
        loss: torch.Tensor = net(x).square().mean()
        loss.backward()
        opt.step()
        return loss.detach()

    ends = []
    for function in (step, graphed := grape.graph(step)):
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 4)
        opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        seen: list[object] = []
        for call in range(20):
            try:
                seen.append(float(function(net, opt, torch.full((2, 4), call / 7), call % 5 == 4)))
            except RuntimeError as error:
                seen.append(type(error))
            if call in (9, 16):
                with torch.inference_mode():
                    net.weight.grad = torch.ones(4, 4)
            seen.append(net.weight.tolist())
        ends.append(seen)
    graphed.release()
    assert ends[0] == ends[1]


def test_a_batch_made_in_inference_mode_is_refused_as_in_eager() -> None:
    """Autograd saves no inference tensor; a graph that was captured for other batches would not say so."""
    twins = twins_of(accumulating)

    def copied(w: World) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (X + 0.5, Y * 2), {}

    def of_inference(w: World) -> tuple[tuple[Any, ...], dict[str, Any]]:
        with torch.inference_mode():
            return copied(w)

    for _ in range(3):
        twins.warm(copied, limit=12)
        twins.call(of_inference)


class Unpacked(nn.Module):
    """Hooks of the person's unpack what its autograd graph saves; `calls` counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.calls = nn.Linear(4, 4), torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def unpack(saved: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return saved

        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpack):
            return self.body(x).tanh().exp()


class Recomputed(nn.Module):
    """Activation checkpointing of a batch norm, which counts its forwards."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.body, x, use_reentrant=False) * 2

    @property
    def calls(self) -> torch.Tensor:
        return self.body[1].num_batches_tracked


@pytest.mark.skipif(not hasattr(torch._C._autograd.SavedTensor, "unpack_hook"), reason="torch does not show the hooks")
@pytest.mark.parametrize("kind", [Unpacked, Recomputed])
def test_what_an_autograd_graph_saved_is_unpacked_by_the_person_only(kind: type[nn.Module]) -> None:
    def counts(net: Any) -> list[float]:
        found = []
        for _ in range(6):
            net(X).sum().backward()
            found.append(net.calls.item())
        return found

    torch.manual_seed(0)
    nets = [kind(), kind()]
    expected = counts(nets[0])
    try:
        with grape.session():
            assert counts(nets[1]) == expected
    finally:
        close_engine()


def _is_given(result: torch.Tensor, expected: torch.Tensor, gradients: bool) -> bool:
    return torch.equal(result, expected) and result.requires_grad is gradients


def test_what_was_refused_for_its_gradients_replays_without_them() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    expected = net(X).detach()

    def outcome(gradients: bool) -> str:
        with grape.session(), torch.set_grad_enabled(gradients):
            assert all([_is_given(net(X), expected, gradients) for _ in range(14)])
        (region,) = [one for one in grape.last.to_dict()["regions"] if one["name"].startswith("Sequential")]
        return str(region["outcome"])

    try:
        outcomes = [outcome(gradients) for gradients in (True, False, True, False)]
        assert outcomes == ["refused", "replayed", "refused", "replayed"]
        assert not [one for one in grape.last.to_dict()["findings"] if one["code"] == "GR405"]
    finally:
        close_engine()
