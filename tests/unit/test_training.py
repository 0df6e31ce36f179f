"""Regions that contain autograd: gradients are state (R20), and no autograd graph outlives the region (R21)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn import functional as F

from grape.runtime.backends.reference.backend import ReferenceBackend
from tests.property.programs import Twins, World

pytestmark = pytest.mark.usefixtures("without_eager_calls_in_between")


Step = Callable[[World], Callable[..., Any]]


def small(optimizer: Callable[[Any], torch.optim.Optimizer] | None = None) -> World:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    make = optimizer or (lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9))
    return World(net=net, optimizer=make(net.parameters()), held=[])


def training(step: Step | None = None, optimizer: Callable[[Any], torch.optim.Optimizer] | None = None) -> Twins:
    """Twins of a world whose function is a training step."""

    def build() -> World:
        world = small(optimizer)
        world.function = (step or whole_step)(world)
        return world

    return Twins(build)


def whole_step(w: World) -> Callable[..., Any]:
    net, optimizer = w.net, w.optimizer

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def accumulating(w: World) -> Callable[..., Any]:
    net = w.net

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(net(x), y)
        loss.backward()
        return loss.detach()

    return step


X, Y = torch.linspace(-1, 1, 12).view(3, 4), torch.linspace(0, 1, 6).view(3, 2)


def batch(w: World) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (X, Y), {}


def replaying(step: Step | None = None, optimizer: Callable[[Any], torch.optim.Optimizer] | None = None) -> Twins:
    twins = training(step, optimizer)
    twins.warm(batch, limit=12)
    return twins


def replays_of(twins: Twins, calls: int) -> int:
    before = twins.replays
    twins.calls_of(batch, calls)
    return twins.replays - before


def refusal(twins: Twins, calls: int = 12) -> Any:
    twins.calls_of(batch, calls)
    assert twins.replays == 0
    assert twins.refused is not None
    return twins.refused


def line_of(function: Any, text: str) -> int:
    import inspect

    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


# -- gradients are state ---------------------------------------------------------------------------------------------


def test_a_whole_step_replays() -> None:
    assert replays_of(replaying(), 6) == 6


ON_DEVICE: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam, fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "AdamW, fused, rate in a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), fused=True),
    "SGD, fused, rate in a tensor": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1), momentum=0.9, fused=True),
    "Adagrad, fused": lambda p: torch.optim.Adagrad(p, fused=True),
}


@pytest.mark.parametrize("name", ON_DEVICE)
def test_an_optimizer_whose_numbers_are_on_the_device_joins_the_step(name: str) -> None:
    assert replays_of(replaying(optimizer=ON_DEVICE[name]), 6) == 6


@pytest.mark.parametrize("name", [name for name in ON_DEVICE if "tensor" in name])
def test_a_scheduler_writes_into_a_rate_that_is_a_tensor(name: str) -> None:
    """Its step stays outside; no graph is captured for a new rate."""

    def build(w: World) -> Callable[..., Any]:
        w.scheduler = torch.optim.lr_scheduler.ExponentialLR(w.optimizer, 0.5)
        return whole_step(w)

    twins = replaying(build, ON_DEVICE[name])
    before = twins.replays
    for _ in range(5):
        twins.calls_of(batch, 1)
        twins.both(lambda w: w.scheduler.step())
    assert twins.replays == before + 5


def test_a_scaler_steps_an_optimizer_whose_numbers_are_on_the_device() -> None:
    def build(w: World) -> Callable[..., Any]:
        net, optimizer = w.net, w.optimizer
        w.scaler = scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        return step

    twins = replaying(build, ON_DEVICE["Adam, fused"])
    assert replays_of(twins, 8) == 8
    scales = [w.scaler.get_scale() for w in (twins.eager, twins.world)]
    assert scales[0] == scales[1] > 64.0


def test_adam_with_its_numbers_on_the_host_does_not_join() -> None:
    refused = refusal(training(optimizer=lambda p: torch.optim.Adam(p, lr=0.1)))
    assert refused.code in ("GR101", "GR403")


def _hold(w: World) -> Any:
    return [p.grad for p in w.net.parameters()]


HOLDERS: dict[str, Callable[[World], Any]] = {
    "the gradient": lambda w: [p.grad for p in w.net.parameters()],
    "a view": lambda w: [p.grad.t() if p.dim() > 1 else p.grad[1:] for p in w.net.parameters()],
    "a storage": lambda w: w.net[0].weight.grad.untyped_storage(),
    "an array": lambda w: w.net[0].weight.grad.numpy(),
    "autograd": lambda w: (torch.ones(5, 4, requires_grad=True) * w.net[0].weight.grad).sum(),
    "a detached alias": lambda w: w.net[2].bias.grad.detach(),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_r20_a_gradient_that_somebody_holds_is_never_overwritten(name: str) -> None:
    twins = replaying()
    held = HOLDERS[name](twins.world)
    before = contents_of(held)
    twins.calls_of(batch, 2)
    assert contents_of(held) == before
    if isinstance(held, torch.Tensor) and held.requires_grad:
        held.backward()  # would raise if what it saved had been written
    del held
    assert replays_of(twins, 8) >= 4


def contents_of(held: Any) -> Any:
    """As plain numbers: nothing else may hold the gradient."""
    return [one.tolist() for one in held] if isinstance(held, list) else held.tolist()


def test_r20_a_step_that_accumulates_does_so_in_the_same_object() -> None:
    twins = training(accumulating)
    twins.calls_of(batch, 4)
    held = {id(w): _hold(w) for w in (twins.eager, twins.world)}
    assert replays_of(twins, 10) >= 3
    for w in (twins.eager, twins.world):
        assert all(one is other for one, other in zip(held[id(w)], _hold(w), strict=True))


def test_r20_a_gradient_that_was_replaced_is_brought_home() -> None:
    twins = training(accumulating)
    twins.calls_of(batch, 12)
    for _ in range(3):
        twins.both(lambda w: [setattr(p, "grad", p.grad * 0.5) for p in w.net.parameters()] and None)
        assert replays_of(twins, 1) == 1


def test_r20_a_replaced_gradient_that_is_in_use_is_not_moved() -> None:
    twins = training(accumulating)
    twins.calls_of(batch, 12)

    def replace(w: World) -> None:
        for p in w.net.parameters():
            p.grad = p.grad * 0.5
        w.held = [p.grad[:1] for p in w.net.parameters()]

    twins.both(replace)
    twins.calls_of(batch, 3)  # the views follow, as they do in eager
    twins.both(lambda w: w.held.clear())
    twins.calls_of(batch, 3)


def test_absent_and_present_gradients_have_graphs_of_their_own() -> None:
    def step(w: World) -> Callable[..., Any]:
        net, optimizer = w.net, w.optimizer

        def micro(x: torch.Tensor, y: torch.Tensor) -> None:
            F.mse_loss(net(x), y).backward()

        w.finish = lambda: (optimizer.step(), optimizer.zero_grad())
        return micro

    twins = training(step)
    for _ in range(8):
        twins.calls_of(batch, 2)
        twins.both(lambda w: w.finish() and None)
    before = twins.replays
    for _ in range(4):
        twins.calls_of(batch, 2)
        twins.both(lambda w: w.finish() and None)
    assert twins.replays - before == 8


def test_an_optimizer_step_alone_replays_on_the_gradients_that_it_finds() -> None:
    def build(w: World) -> Callable[..., Any]:
        net, optimizer = w.net, w.optimizer

        def apply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            return norm

        return apply

    twins = training(build)
    for _ in range(14):
        twins.both(lambda w: F.mse_loss(w.net(X), Y).backward())
        twins.call(batch)
    assert twins.replays >= 4


def test_a_parameter_that_is_thawed_is_seen_by_a_step_under_no_grad() -> None:
    def build(w: World) -> Callable[..., Any]:
        w.net[2].requires_grad_(False)
        optimizer = w.optimizer

        def apply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.step()
            return x + y.sum()

        return apply

    def train(w: World) -> None:
        with torch.enable_grad():
            F.mse_loss(w.net(X), Y).backward()

    twins = training(build, lambda params: torch.optim.SGD(params, lr=0.1))
    with torch.no_grad():
        for index in range(20):
            if index == 14:
                twins.both(lambda w: w.net[2].requires_grad_(True))
            twins.both(train)
            twins.call(batch)
    assert twins.replays > 3


def test_reading_gradients_is_no_write() -> None:
    """Autograd would take a write for a reason to refuse what it saved."""

    def build(w: World) -> Callable[..., Any]:
        net = w.net
        return lambda x, y: torch.stack([p.grad.norm() for p in net.parameters()]).square().sum().sqrt() + y.sum()

    twins = training(build)
    twins.both(lambda w: F.mse_loss(w.net(X), Y).backward())
    twins.calls_of(batch, 10)
    product = (torch.ones(5, 4, requires_grad=True) * twins.world.net[0].weight.grad).sum()
    assert replays_of(twins, 3) == 3
    product.backward()


def test_a_gradient_of_a_frozen_or_unused_parameter_stays() -> None:
    def step(w: World) -> Callable[..., Any]:
        w.net[0].bias.requires_grad_(False)
        w.net[0].bias.grad = torch.ones(5)
        w.net.register_parameter("unused", nn.Parameter(torch.ones(2)))
        w.net.unused.grad = torch.full((2,), 3.0)
        net = w.net

        def micro(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            for p in net[2].parameters():
                p.grad = None
            loss = F.mse_loss(net(x), y)
            loss.backward()
            return loss

        return micro

    assert replays_of(replaying(step), 4) >= 3


def test_a_failed_capture_leaves_gradients_as_the_eager_run_left_them() -> None:
    twins = training()
    capture = ReferenceBackend.capture

    def failing(self: ReferenceBackend, body: Callable[[], Any]) -> Any:
        capture(self, body)
        raise RuntimeError("no graph")

    with mock.patch.object(ReferenceBackend, "capture", failing):
        refused = refusal(twins)
    assert "no graph" in refused.why


def test_without_counts_of_references_no_gradient_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grape.runtime.training.gradients.SUPPORTED", False)
    assert refusal(training()).code == "GR405"


# -- results ---------------------------------------------------------------------------------------------------------


def test_r21_a_consumed_loss_behaves_as_eager_does() -> None:
    twins = replaying()
    losses = [twins.last[0], twins.last[1]]
    assert str(losses[0]) == str(losses[1])
    for loss in losses:
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            (loss * 2 + 1).backward()
        loss += 1
        assert loss.requires_grad
        assert not loss.is_leaf


def test_r21_a_second_backward_shows_the_frames_that_it_shows_in_eager() -> None:
    twins = replaying()
    frames = []
    for loss in (twins.last[0], twins.last[1]):
        with pytest.raises(RuntimeError, match="backward through the graph a second time") as raised:
            (loss * 2).backward()
        frames.append([(entry.path, entry.name) for entry in raised.traceback])
    assert frames[0] == frames[1]


def _unconsumed(w: World) -> Callable[..., Any]:
    net = w.net
    return lambda x, y: F.mse_loss(net(x), y)


def _retained(w: World) -> Callable[..., Any]:
    net, optimizer = w.net, w.optimizer

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward(retain_graph=True)
        return loss

    return step


def _twice(w: World) -> Callable[..., Any]:
    net = w.net

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        loss = F.mse_loss(net(x), y)
        (first,) = torch.autograd.grad(loss, net[0].weight, create_graph=True)
        net[0].weight.grad = first * 2

    return step


def _nothing_saved(w: World) -> Callable[..., Any]:
    net = w.net

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        net.zero_grad()
        loss = (net[0].bias + net[0].bias).sum() + 1
        loss.backward()
        return loss  # a second backward works in eager

    return step


KEPT = {"results": _unconsumed, "retain_graph": _retained, "nothing saved": _nothing_saved, "create_graph": _twice}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KEPT)
def test_r21_a_graph_that_is_not_consumed_inside_is_refused(name: str) -> None:
    assert refusal(training(KEPT[name])).code == "GR405"


def test_a_gradient_penalty_with_double_backward_replays() -> None:
    def build(w: World) -> Callable[..., Any]:
        net, optimizer = w.net, w.optimizer

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            x = x.detach().requires_grad_()
            out = net(x)
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            loss = F.mse_loss(out, y) + 0.1 * slope.square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    assert replays_of(replaying(build), 3) == 3


def test_r21_nothing_of_the_captured_autograd_graph_stays() -> None:
    twins = replaying()
    twins.results.clear()
    twins.last = (None, None)
    twins.calls_of(batch, 2)
    twins.results.clear()
    twins.last = (None, None)
    gc.collect()
    arena = twins.backend._arena  # type: ignore[attr-defined]
    assert sum(map(len, arena._free.values())) == len(arena._blocks)


def test_a_model_dies_with_its_world() -> None:
    twins = replaying()
    net = weakref.ref(twins.world.net)
    twins.close()
    del twins
    gc.collect()
    assert net() is None


def test_arguments_that_require_a_gradient_are_refused() -> None:
    def build(w: World) -> Callable[..., Any]:
        net = w.net

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            F.mse_loss(net(x), y).backward()
            return x.detach() * 2

        return step

    twins = training(build)
    for _ in range(12):
        twins.call(lambda w: ((X.clone().requires_grad_(), Y), {}))
    assert twins.refused.why == "an argument requires a gradient"


def test_model_and_optimizer_may_be_arguments() -> None:
    def step(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    twins = training(lambda w: step)
    for _ in range(14):
        twins.call(lambda w: ((w.net, w.optimizer, X, Y), {}))
    assert twins.replays >= 4


# -- optimizers ------------------------------------------------------------------------------------------------------


class Counting(torch.optim.SGD):
    """Counts its steps in Python."""

    taken = 0

    def step(self, closure: Any = None) -> Any:
        self.taken += 1
        return super().step(closure)


def test_an_increment_is_never_lost() -> None:
    twins = training(optimizer=lambda params: Counting(params, lr=0.1))
    assert refusal(twins).code == "GR404"
    assert twins.world.optimizer.taken == twins.eager.optimizer.taken == 12


def test_state_that_changes_is_refused_at_the_line_that_mentions_it() -> None:
    def build(w: World) -> Callable[..., Any]:
        step, scheduler = whole_step(w), torch.optim.lr_scheduler.ExponentialLR(w.optimizer, 0.9)

        def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = step(x, y)
            scheduler.step()
            return loss

        w.inner = both
        return both

    twins = training(build)
    refused = refusal(twins)
    assert refused.code == "GR404"
    assert "`scheduler" in refused.why
    assert refused.at.line == line_of(twins.world.inner, "scheduler.step()")


def test_scalars_that_change_at_every_step_are_refused_at_the_line_of_the_step() -> None:
    twins = training(optimizer=lambda params: torch.optim.Adam(params, lr=0.1))
    refused = refusal(twins)
    assert refused.code == "GR403"
    assert refused.why == "it reads a number from a tensor that each call changes"
    assert refused.at.line == line_of(whole_step, "optimizer.step()")


def _scheduled(w: World) -> Callable[..., Any]:
    w.scheduler = torch.optim.lr_scheduler.ExponentialLR(w.optimizer, 0.9)
    return whole_step(w)


def test_a_rate_that_changes_at_every_step_is_refused_at_the_line_of_the_step() -> None:
    twins = training(_scheduled, lambda params: torch.optim.SGD(params, lr=0.1))
    for _ in range(12):
        twins.call(batch)
        twins.both(lambda w: w.scheduler.step())
    assert twins.refused.code == "GR403"
    assert twins.refused.at.line == line_of(whole_step, "optimizer.step()")


def test_a_rate_that_changes_now_and_then_is_captured_again() -> None:
    twins = training(_scheduled, lambda params: torch.optim.SGD(params, lr=0.1))
    for _ in range(12):
        twins.calls_of(batch, 18)
        twins.both(lambda w: w.scheduler.step())
    assert twins.replays > 12 * 14


def test_an_optimizer_that_reads_another_number_each_time_is_given_up() -> None:
    """A tensor rate of an optimizer that reads it: the graph of no value is used twice."""
    twins = training(_scheduled, lambda params: torch.optim.SGD(params, lr=torch.tensor(0.1)))
    for _ in range(20):
        twins.call(batch)
        twins.both(lambda w: w.scheduler.step())
    assert twins.refused.code == "GR101"
    assert twins.refused.at.line == line_of(whole_step, "optimizer.step()")


def halve(p: torch.Tensor) -> None:
    assert p.grad is not None
    p.grad.mul_(0.5)


HOOKS: dict[str, tuple[Callable[[World], Any], str | None]] = {
    "on a parameter": (lambda w: w.net[0].weight.register_hook(lambda g: g * 0.5), None),
    "after accumulation": (
        lambda w: w.net[0].weight.register_post_accumulate_grad_hook(halve),
        None,
    ),
    "on a module": (lambda w: w.net[2].register_full_backward_hook(lambda m, i, o: (i[0] * 2,)), None),
    "before a step": (lambda w: w.optimizer.register_step_pre_hook(lambda o, a, k: None), None),
    "that prints": (lambda w: w.net[0].weight.register_hook(lambda g: print(end="")), "GR404"),
    "that counts": (lambda w: w.net[0].weight.register_hook(lambda g: w.held.append(1)), "GR404"),
    "that counts steps": (lambda w: w.optimizer.register_step_post_hook(lambda o, a, k: w.held.append(1)), "GR404"),
    "that reads": (lambda w: w.net[0].weight.register_hook(lambda g: g * float(g.sum() > 0)), None),
}


def remover(handle: Any) -> Callable[[], None]:
    return lambda: handle.remove()


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("late", [False, True])
def test_hooks(name: str, late: bool) -> None:
    register, code = HOOKS[name]
    if late:
        twins = replaying()
        twins.both(lambda w: setattr(w, "remove", remover(register(w))))
        twins.calls_of(batch, 10)
    else:

        def build(w: World) -> Callable[..., Any]:
            w.remove = remover(register(w))
            return whole_step(w)

        twins = training(build)
        twins.calls_of(batch, 12)
        assert (twins.refused.code if twins.refused else None) == code
    twins.both(lambda w: w.remove())
    twins.calls_of(batch, 4)
    if code is None:
        assert twins.replays > 4


# -- what people do between steps ------------------------------------------------------------------------------------


def _head(w: World) -> None:
    w.net[2] = nn.Linear(5, 2)
    w.optimizer.add_param_group({"params": list(w.net[2].parameters())})


def _load(w: World, *, assign: bool) -> None:
    w.net.load_state_dict({k: v.clone() * 0.5 for k, v in w.net.state_dict().items()}, assign=assign)


BETWEEN: dict[str, Callable[[World], Any]] = {
    "load in place": lambda w: _load(w, assign=False),
    "load by assignment": lambda w: _load(w, assign=True),
    "load the optimizer": lambda w: w.optimizer.load_state_dict(w.optimizer.state_dict()),
    "evaluate": lambda w: w.net.eval()(X).sum().item() and w.net.train(),
    "a new head": _head,
    "freeze": lambda w: w.net[0].requires_grad_(False),
    "another rate": lambda w: w.optimizer.param_groups[0].__setitem__("lr", 0.01),
    "gradients to zero": lambda w: w.optimizer.zero_grad(set_to_none=False),
    "gradients from elsewhere": lambda w: [setattr(p, "grad", torch.ones_like(p)) for p in w.net.parameters()] and None,
}


@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize("step", [whole_step, accumulating])
def test_what_happens_between_steps_is_seen(name: str, step: Step) -> None:
    twins = training(step)
    twins.calls_of(batch, 10)
    assert twins.replays
    for _ in range(2):
        twins.both(BETWEEN[name])
        twins.calls_of(batch, 4)
    assert replays_of(twins, 3) == 3


# -- precision -------------------------------------------------------------------------------------------------------


def _scaled(w: World, *, step_inside: bool) -> Callable[..., Any]:
    net, optimizer = w.net, w.optimizer
    w.scaler = scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def finish() -> None:
        scaler.step(optimizer)
        scaler.update()

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(net(x), y.bfloat16())
        scaler.scale(loss).backward()
        if step_inside:
            finish()
        return loss.detach()

    w.finish = finish
    return step


def test_a_scaled_backward_replays_and_the_step_of_the_scaler_stays_eager() -> None:
    twins = training(lambda w: _scaled(w, step_inside=False))
    for _ in range(14):
        twins.call(batch)
        twins.both(lambda w: w.finish())
    assert twins.replays >= 4


def test_the_step_of_a_scaler_is_refused() -> None:
    refused = refusal(training(lambda w: _scaled(w, step_inside=True)))
    assert refused.code == "GR101"
    assert refused.at.line == line_of(_scaled, "scaler.step(optimizer)")


@pytest.mark.parametrize("outside", [True, False])
def test_casts_are_cached_as_eager_caches_them(outside: bool) -> None:
    """A weight that is used twice: with the cache its gradients are added up in bfloat16."""

    def build(w: World) -> Callable[..., Any]:
        shared, optimizer = nn.Linear(4, 4), w.optimizer
        w.shared = shared

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            shared.zero_grad()
            with nullcontext() if outside else torch.autocast("cpu", torch.bfloat16):
                loss = shared(shared(x) * 1.37).float().square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return step

    twins = training(build)
    with torch.autocast("cpu", torch.bfloat16) if outside else nullcontext():
        twins.calls_of(batch, 12)
    assert (twins.replays == 0) == outside


# -- what cannot be captured leaves the cell alone -------------------------------------------------------------------


@pytest.fixture
def words() -> Iterator[torch.Tensor]:
    yield torch.tensor([0, 2, 2])


def test_sparse_gradients_stay_eager(words: torch.Tensor) -> None:
    def build(w: World) -> Callable[..., Any]:
        table = w.table = nn.Embedding(4, 3, sparse=True)
        optimizer = w.optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = table(words).tanh().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    twins = training(build)
    for _ in range(10):
        twins.call(batch)
    assert twins.replays == 0


def test_an_exception_in_a_hook_is_the_persons() -> None:
    def build(w: World) -> Callable[..., Any]:
        w.net[0].weight.register_hook(lambda g: 1 / 0 if w.held else None)
        return whole_step(w)

    twins = training(build)
    twins.calls_of(batch, 6)
    twins.both(lambda w: w.held.append(1))
    twins.calls_of(batch, 3)
    twins.both(lambda w: w.held.clear())
    twins.calls_of(batch, 4)
