"""A module whose results carry an autograd graph replays as two graphs behind one node of autograd (R26)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.utils.flop_counter
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from grape.runtime.backends.cuda.backend import CudaBackend
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.sessions import engine
from tests.property.cell_loops import run_cell
from tests.property.pairs import PairTwins, Step
from tests.property.programs import World, eager_to_graph, same

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("without_eager_calls_in_between")]

WIDTH = 4


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.words((x * 2).long().abs().clamp_max(6)).mean(1)
        h = torch.tanh(self.body(self.body(torch.tanh(self.body(h)))))
        return F.linear(h, self.words.weight)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.spare = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Parameter(torch.ones(WIDTH), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x * self.frozen).relu()


class Several(nn.Module):
    """Three results; the first is used inside, and the last carries no graph."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.tanh(self.one(x))
        out = self.two(h) + self.two(h.roll(1, 0))
        return {"h": h, "out": out, "x": x}, out.argmax(-1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.layer = nn.GRUCell(WIDTH, WIDTH), nn.GRU(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x
        for _ in range(3):
            h = self.cell(x, h)
        return self.layer(h[None])[0][0]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.stack([x, x.flip(1), x * self.scale], 1)).mean(1)


class Inside(nn.Module):
    """Autocast inside of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.head(self.body(self.body(x))).float()


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.BatchNorm1d(5), nn.GELU(), nn.Dropout(0.3), nn.Linear(5, WIDTH))


def smooth() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, WIDTH), nn.Sigmoid())


MODULES: dict[str, Callable[[], nn.Module]] = {
    "dropout and batch norm": perceptron,
    "smooth": smooth,
    "tied weights": Tied,
    "unused and frozen": Unused,
    "recurrent": Recurrent,
    "attention": Attention,
    "autocast inside": Inside,
}


def world_of(module: Callable[[], nn.Module]) -> Callable[[], World]:
    def build() -> World:
        net = module()
        return World(net=net, optimizer=torch.optim.Adam(net.parameters(), lr=0.02), held=[])

    return build


def batch(number: int) -> torch.Tensor:
    return torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(number))


def plain(w: World, net: Callable[..., Any], number: int) -> Any:
    """The loss is read between forward and backward."""
    w.optimizer.zero_grad()
    out = net(batch(number))
    loss = F.mse_loss(out, torch.ones_like(out))
    value = loss.item()
    loss.backward()
    w.optimizer.step()
    return value, out


@pytest.mark.parametrize("name", MODULES)
def test_a_loss_that_is_read_before_backward(name: str) -> None:
    twins = PairTwins(world_of(MODULES[name]), plain)
    twins.run(9)
    assert twins.run(6) == 6, twins.refused
    assert twins.graphed._region is not None


# -- what people do around a module ----------------------------------------------------------------------------------


def _accumulate(w: World, net: Callable[..., Any], number: int) -> Any:
    if number % 3 == 0:
        w.optimizer.step()
        w.optimizer.zero_grad(set_to_none=number % 2 == 0)
    loss = net(batch(number)).pow(2).mean()
    loss.backward()
    return loss.item()


def _clip(w: World, net: Callable[..., Any], number: int) -> Any:
    w.optimizer.zero_grad()
    loss = net(batch(number)).square().sum()
    loss.item()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(w.net.parameters(), 0.1)
    w.optimizer.step()
    return norm


def _penalty(w: World, net: Callable[..., Any], number: int) -> Any:
    """Further parts of each weight's gradient, before and after those of the module."""
    w.optimizer.zero_grad()
    early = sum(p.abs().sum() for p in w.net.parameters() if p.requires_grad)
    out = net(batch(number))
    loss = out.square().mean() + 0.1 * sum(p.pow(2).sum() for p in w.net.parameters() if p.requires_grad) + 0.01 * early
    value = loss.item()
    loss.backward()
    w.optimizer.step()
    return value


def _input_gradient(w: World, net: Callable[..., Any], number: int) -> Any:
    x = batch(number).requires_grad_()
    y = x * 2  # has a graph, and is used twice outside
    out = net(y)
    (out.sum() + y.pow(2).sum() + y.exp().sum()).backward()
    return x.grad


def _two_before_backward(w: World, net: Callable[..., Any], number: int) -> Any:
    w.optimizer.zero_grad()
    one, two = net(batch(number)), net(batch(number + 100))
    loss = (one - two).pow(2).mean()
    value = loss.item()
    loss.backward()
    w.optimizer.step()
    return value, one, two


def _fed_back(w: World, net: Callable[..., Any], number: int) -> Any:
    w.optimizer.zero_grad()
    loss = net(net(batch(number))).pow(2).mean()
    loss.backward()
    w.optimizer.step()
    return loss


def _kept(w: World, net: Callable[..., Any], number: int) -> Any:
    """The results of the last steps are kept, with graphs that were consumed."""
    out = net(batch(number))
    w.held.append(out)
    out.mean().backward()
    w.optimizer.step()
    return list(w.held)


def _retained(w: World, net: Callable[..., Any], number: int) -> Any:
    w.optimizer.zero_grad()
    loss = net(batch(number)).pow(2).mean()
    loss.backward(retain_graph=True)
    loss.backward()
    w.optimizer.step()
    return loss.item()


def _no_backward(w: World, net: Callable[..., Any], number: int) -> Any:
    """Every third step only looks."""
    loss = net(batch(number)).mean()
    if number % 3:
        loss.backward()
        w.optimizer.step()
    return loss.item()


def _epochs(w: World, net: Callable[..., Any], number: int) -> Any:
    if number % 4 == 3:
        w.net.eval()
        with torch.no_grad():
            value = net(batch(number))
        w.net.train()
        return value
    return plain(w, net, number)


def _hooks(w: World, net: Callable[..., Any], number: int) -> Any:
    """Hooks on leaves, on results and after accumulation work once each."""
    if number == 5:
        for p in w.net.parameters():
            p.register_hook(lambda g: g * 2)
            p.register_post_accumulate_grad_hook(lambda p: p.grad.add_(0.01))
    w.optimizer.zero_grad()
    out = net(batch(number))
    out.register_hook(lambda g: g * 0.5)
    out.retain_grad()
    out.square().sum().backward()
    w.optimizer.step()
    return out.grad


def _other_pattern(w: World, net: Callable[..., Any], number: int) -> Any:
    """Gradients of other strides at some steps."""
    w.optimizer.zero_grad()
    out = net(batch(number))
    losses = (out.sum(), (out.t().contiguous() * 2).exp().sum(), out.pow(2).sum(), out.pow(2).sum())
    loss = losses[number % 4]
    loss.backward()
    w.optimizer.step()
    return loss.item()


def _partial(w: World, net: Callable[..., Any], number: int) -> Any:
    """Derivatives of some parameters only, without `.grad`."""
    loss = net(batch(number)).pow(2).mean()
    wanted = [p for p in w.net.parameters() if p.requires_grad][-1:]
    return torch.autograd.grad(loss, wanted)


def _custom_gradient(w: World, net: Callable[..., Any], number: int) -> Any:
    """As reinforcement learning does: the gradient is made by hand."""
    w.optimizer.zero_grad()
    out = net(batch(number))
    reward = out.detach().mean(1, keepdim=True)
    out.backward(reward.expand_as(out) * 0.1)
    w.optimizer.step()
    return out


STEPS: dict[str, Step] = {
    "accumulation": _accumulate,
    "clipping": _clip,
    "a penalty on weights": _penalty,
    "the gradient of an input": _input_gradient,
    "two forwards before a backward": _two_before_backward,
    "a result fed back": _fed_back,
    "results kept": _kept,
    "a graph gone through twice": _retained,
    "no backward": _no_backward,
    "evaluation in between": _epochs,
    "hooks": _hooks,
    "gradients of other strides": _other_pattern,
    "some gradients": _partial,
    "a gradient by hand": _custom_gradient,
}


@pytest.mark.parametrize("module", ["dropout and batch norm", "tied weights", "recurrent"])
@pytest.mark.parametrize("step", STEPS)
def test_what_surrounds_the_module(step: str, module: str) -> None:
    twins = PairTwins(world_of(MODULES[module]), STEPS[step])
    twins.run(22)
    assert twins.replays >= 6, twins.refused


def test_a_hook_that_counts_is_called_as_often_as_by_eager() -> None:
    counts: list[list[float]] = [[], []]

    def step(w: World, net: Callable[..., Any], number: int) -> Any:
        if number == 9:
            seen = counts[w is twins.worlds[1]]
            next(w.net.parameters()).register_hook(lambda g: seen.append(float(g.sum())))
        return plain(w, net, number)

    twins = PairTwins(world_of(perceptron), step)
    twins.run(14)
    assert counts[0] == counts[1]
    assert len(counts[0]) == 6


# -- derivatives of derivatives --------------------------------------------------------------------------------------


def _gradient_penalty(w: World, net: Callable[..., Any], number: int) -> Any:
    w.optimizer.zero_grad()
    x = batch(number).requires_grad_()
    out = net(x)
    (slope,) = torch.autograd.grad(out.sum(), [x], create_graph=True)
    loss = out.mean() + (slope.norm(dim=1) - 1).pow(2).mean()
    loss.backward()
    w.optimizer.step()
    return loss.item(), slope


def test_a_region_whose_gradients_are_differentiated_again_is_refused() -> None:
    twins = PairTwins(world_of(smooth), _gradient_penalty)
    assert twins.run(14) == 0
    assert twins.refused.why == "its gradients are differentiated again"


DROPPING: dict[str, Callable[[], nn.Module]] = {
    "smooth": smooth,
    "random": lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, WIDTH)),
    "several parts": lambda: nn.GRUCell(WIDTH, WIDTH),
    "buffers": lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, WIDTH)),
}


def _with_slope(w: World, net: Callable[..., Any], number: int) -> Any:
    w.optimizer.zero_grad()
    x = batch(number).requires_grad_()
    net(x).pow(2).mean().backward()
    w.optimizer.step()
    return x.grad


def _slope(of: torch.Tensor, by: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """A helper that the calling code does not tell from others."""
    return torch.autograd.grad(of, by, create_graph=True)


def _penalty_by_helper(w: World, net: Callable[..., Any], number: int) -> Any:
    x = batch(number).requires_grad_()
    out = net(x)
    (slope,) = _slope(out.sum(), [x])
    (out.mean() + (slope.norm(dim=1) - 1).pow(2).mean()).backward()
    w.held.append([p.grad for p in w.net.parameters()])
    w.net.zero_grad()
    return slope


def _penalty(w: World, net: Callable[..., Any], number: int) -> Any:
    x = batch(number).requires_grad_()
    out = net(x)
    (slope,) = torch.autograd.grad(out.sum(), [x], create_graph=True)
    (out.mean() + (slope.norm(dim=1) - 1).pow(2).mean()).backward()
    w.held.append([p.grad for p in w.net.parameters()])
    w.net.zero_grad()
    return slope


@pytest.mark.parametrize("name", DROPPING)
def test_a_second_derivative_that_the_calling_code_names(name: str) -> None:
    """Graphs replay already, and leave the call to eager code: all bits are the same."""
    twins = PairTwins(world_of(DROPPING[name]), _with_slope)
    twins.run(12)
    assert twins.run(1) == 1
    twins.both(lambda w: w.net.zero_grad())
    assert twins.run(1, _penalty) == 0
    torch.testing.assert_close(*(w.held[0] for w in twins.worlds), rtol=0, atol=0)
    assert twins.run(4, _gradient_penalty) == 0


@pytest.mark.parametrize("name", DROPPING)
def test_a_second_derivative_of_a_replayed_call(name: str) -> None:
    """The first one comes when graphs replay already, from a helper: the forward runs again, and is differentiated.

    First derivatives have the bits of eager. Second ones go through two graphs where eager has one, and differ by
    rounding; from then on such calls are eager.
    """
    twins = PairTwins(world_of(DROPPING[name]), _with_slope)
    twins.run(12)
    assert twins.run(1) == 1
    twins.both(lambda w: w.net.zero_grad())
    assert twins.run(1, _penalty_by_helper) == 1
    torch.testing.assert_close(*(w.held[0] for w in twins.worlds))
    assert twins.run(4, _gradient_penalty) == 0


def test_a_second_derivative_through_what_the_argument_was_made_of() -> None:
    """The argument depends on the module's own weights: no path is counted twice. Sums come in another order."""

    def step(w: World, net: Callable[..., Any], number: int) -> Any:
        w.optimizer.zero_grad()
        x = batch(number) @ w.net[0].weight.t()[:, :WIDTH]
        out = net(x)
        if number == 15:
            grads = _slope(out.pow(2).sum(), list(w.net.parameters()))
            sum(g.pow(2).sum() for g in grads).backward()
            w.held += [[p.grad for p in w.net.parameters()], [g.detach() for g in grads]]
            w.optimizer.zero_grad()
            return None
        out.pow(2).sum().backward()
        w.optimizer.step()
        return out

    twins = PairTwins(world_of(smooth), step)
    twins.run(14)
    assert twins.run(1) == 1
    twins.run(5)
    (second, first), (again, once) = (w.held for w in twins.worlds)
    torch.testing.assert_close(second, again)
    torch.testing.assert_close(first, once, rtol=0, atol=0)


# -- several results -------------------------------------------------------------------------------------------------

USES: dict[str, Callable[[Any], torch.Tensor]] = {
    "one": lambda found: found[0]["out"].pow(2).sum(),
    "the inner one": lambda found: found[0]["h"].pow(2).sum(),
    "both": lambda found: (found[0]["out"].sum(1) * found[0]["h"].sum(1)).sum() + found[0]["h"].exp().sum(),
}


def _using(use: str) -> Step:
    def step(w: World, net: Callable[..., Any], number: int) -> Any:
        w.optimizer.zero_grad()
        found = net(batch(number))
        USES[use](found).backward()
        w.optimizer.step()
        return found[0]["out"], found[0]["h"], found[1], [p.grad for p in w.net.parameters()]

    return step


@pytest.mark.parametrize("use", USES)
def test_results_that_nobody_uses_get_no_gradient(use: str) -> None:
    twins = PairTwins(world_of(Several), _using(use))
    twins.run(9)
    assert twins.run(5) == 5, twins.refused
    for other in USES:
        twins.run(3, _using(other))
    assert twins.run(3) >= 2


def test_a_result_that_is_the_argument_is_the_argument() -> None:
    seen = []

    def step(w: World, net: Callable[..., Any], number: int) -> Any:
        x = batch(number).requires_grad_()
        found = net(x)
        seen.append(found[0]["x"] is x)
        found[0]["out"].sum().backward()
        return x.grad

    twins = PairTwins(world_of(Several), step)
    twins.run(9)
    assert twins.run(4) == 4
    assert all(seen)


# -- memory that is changed between forward and backward -------------------------------------------------------------


def _changing(change: Callable[[World, torch.Tensor, torch.Tensor], Any]) -> Step:
    def step(w: World, net: Callable[..., Any], number: int) -> Any:
        w.optimizer.zero_grad()
        x = batch(number) * 1.0
        out = net(x)
        change(w, x, out)
        out.pow(2).sum().backward()
        w.optimizer.step()
        return [p.grad for p in w.net.parameters()]

    return step


@torch.no_grad()
def _scale(tensor: torch.Tensor) -> None:
    tensor.mul_(0.5)


def _moved(w: World, x: torch.Tensor, out: torch.Tensor) -> None:
    w.net[2].weight.data = w.net[2].weight.data * 2


def _in_numpy(w: World, x: torch.Tensor, out: torch.Tensor) -> None:
    x.numpy()[0] = 3.0


CHANGES: dict[str, Callable[[World, torch.Tensor, torch.Tensor], Any]] = {
    "a parameter": lambda w, x, out: _scale(w.net[2].weight),
    "a parameter that nothing saved": lambda w, x, out: _scale(w.net[2].bias),
    "a parameter, unseen": lambda w, x, out: w.net[2].weight.data.mul_(0.5),
    "a parameter's memory": _moved,
    "the argument": lambda w, x, out: _scale(x),
    "the argument, unseen": _in_numpy,
    "the result": lambda w, x, out: out.mul_(2),
    "the result without a graph": lambda w, x, out: _scale(out.detach()),
    "the result, unseen": lambda w, x, out: out.data.mul_(2),
}


@pytest.mark.parametrize("module", [smooth, lambda: smooth()[:3]], ids=["saves its result", "does not"])
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_between_forward_and_backward(name: str, module: Callable[[], nn.Module]) -> None:
    """Eager raises where autograd sees it, and reads what is there where it does not; so do graphs."""
    twins = PairTwins(world_of(module), plain)
    twins.run(12)
    assert twins.run(1, _changing(CHANGES[name])) == 1
    if twins.last_errors[0] is not None:
        assert "modified by an inplace operation" in str(twins.last_errors[1])
    twins.run(3)


def test_a_second_backward_raises_as_eager_does() -> None:
    def step(w: World, net: Callable[..., Any], number: int) -> Any:
        loss = net(batch(number)).pow(2).sum()
        loss.backward()
        loss.backward()

    twins = PairTwins(world_of(smooth), plain)
    twins.run(12)
    assert twins.run(1, step) == 1
    assert str(twins.last_errors[0]) == str(twins.last_errors[1])
    assert twins.run(3) == 3


def test_a_result_is_never_overwritten_while_a_backward_may_come() -> None:
    def step(w: World, net: Callable[..., Any], number: int) -> Any:
        w.held.append(net(batch(number)).pow(2).sum())
        if number % 4 == 0:
            w.optimizer.zero_grad()
            for loss in reversed(w.held):
                loss.backward()
            w.held.clear()
            return [p.grad for p in w.net.parameters()]
        return None

    twins = PairTwins(world_of(perceptron), step)
    twins.run(40)
    assert twins.replays > 8
    assert twins.graphed._region is not None
    twins.graphed._region.release()
    twins.run(8)


def test_graphs_that_are_released_serve_the_backward_that_is_still_to_come() -> None:
    def step(w: World, net: Callable[..., Any], number: int) -> Any:
        loss = net(batch(number)).pow(2).sum()
        if w is twins.worlds[1]:
            twins.graphed.release()
        loss.backward()
        return [p.grad.clone() for p in w.net.parameters()]

    twins = PairTwins(world_of(perceptron), plain)
    twins.run(12)
    twins.once(step)


def test_the_pool_goes_with_the_pair() -> None:
    backend = ReferenceBackend(poison=True)
    twins = PairTwins(world_of(perceptron), plain, backend)
    twins.run(12)
    assert twins.replays
    assert len(backend._pools) == 1
    assert backend.memory().pool_bytes > 0
    twins.close()
    gc.collect()
    assert not list(backend._pools)
    assert backend.memory().pool_bytes == 0


def test_the_module_dies_with_its_last_reference() -> None:
    twins = PairTwins(world_of(perceptron), plain)
    twins.run(12)
    assert twins.replays
    known = weakref.ref(twins.worlds[1].net)
    twins.close()
    twins.worlds.clear()
    twins._calls.clear()
    del twins
    gc.collect()
    assert known() is None


# -- what is refused -------------------------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.reentrant = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.head(x))
        return self.head(checkpoint(lambda h: torch.tanh(self.body(h)), h, use_reentrant=self.reentrant))


class Reentrant(Checkpointed):
    def __init__(self) -> None:
        super().__init__()
        self.reentrant = True


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0]


class Rounding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Straight.apply(self.body(x)) * torch.tanh(x).exp()


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x).exp()
        h.register_hook(lambda g: g * 2)
        return h.tanh()


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        h = self.body(x).tanh() * 2
        return h, h.view(-1)


def backward_hooked() -> nn.Module:
    net = perceptron()
    net[0].register_full_backward_hook(lambda module, given, made: None)
    return net


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "checkpointing": (Checkpointed, "hooks on saved tensors"),
    "reentrant checkpointing": (Reentrant, "its backward is Python code"),
    "a function of one's own": (Rounding, "its backward is Python code"),
    "a hook on a tensor inside": (Hooked, "it puts hooks on tensors"),
    "results that share memory": (Doubled, "shares memory with another tensor"),
    "a hook on a module's backward": (backward_hooked, "hook on its backward"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_pair_serves_is_refused_by_name(name: str) -> None:
    module, why = REFUSED[name]

    def step(w: World, net: Callable[..., Any], number: int) -> Any:
        w.optimizer.zero_grad()
        out = net(batch(number))
        out = out[0] if isinstance(out, tuple) else out
        out.pow(2).sum().backward()
        w.optimizer.step()
        return out

    twins = PairTwins(world_of(module), step)
    assert twins.run(14) == 0
    assert twins.refused.code == "GR405"
    assert why in twins.refused.why


@pytest.mark.parametrize("module", [smooth, Attention])
@pytest.mark.parametrize("cached", [True, False])
def test_autocast_around_the_module(cached: bool, module: Callable[[], nn.Module]) -> None:
    """Casts that it caches belong to its block, which other code may go on using."""

    def step(w: World, net: Callable[..., Any], number: int) -> Any:
        w.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
            out = net(batch(number))
        out.float().pow(2).sum().backward()
        w.optimizer.step()
        return out

    twins = PairTwins(world_of(module), step)
    twins.run(10)
    assert twins.run(4) == (0 if cached else 4)
    if cached:
        assert "autocast" in twins.refused.why


def test_a_backward_that_stands_for_many() -> None:
    """`is_grads_batched` goes through the node once, with tensors that no graph can take."""

    def step(w: World, net: Callable[..., Any], number: int) -> Any:
        w.optimizer.zero_grad()
        out = net(batch(number))
        if number % 16 > 11:
            many = torch.eye(out.numel()).view(-1, *out.shape)
            weight = next(w.net.parameters())
            return torch.autograd.grad(out, weight, many, is_grads_batched=True)[0]
        out.float().pow(2).sum().backward()
        w.optimizer.step()
        return out

    twins = PairTwins(world_of(smooth), step)
    twins.run(10)
    assert twins.run(8) >= 4


MODES: dict[str, Callable[[], Any]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "a mode of one's own": lambda: torch.utils.flop_counter.FlopCounterMode(display=False),
    "a search for anomalies": lambda: torch.autograd.detect_anomaly(),
}


@pytest.mark.parametrize("name", MODES)
def test_a_backward_under_other_modes_runs_the_forward_again(name: str) -> None:
    def step(w: World, net: Callable[..., Any], number: int) -> Any:
        w.optimizer.zero_grad()
        loss = net(batch(number)).pow(2).sum()
        with MODES[name]():
            loss.backward()
        return [p.grad for p in w.net.parameters()]

    twins = PairTwins(world_of(Attention), plain)
    twins.run(12)
    assert twins.run(1, step) == 1
    assert twins.run(3) == 3


def test_gradients_that_are_laid_out_in_another_way_from_some_step_on() -> None:
    """After some backwards that no graph serves, the pair is captured for those that come now."""

    def summed(w: World, net: Callable[..., Any], number: int) -> Any:
        w.optimizer.zero_grad()
        out = net(batch(number))
        out.sum().backward()
        w.optimizer.step()
        return out

    twins = PairTwins(world_of(smooth), plain)
    twins.run(12)
    twins.run(6, summed)
    assert twins.run(4, summed) == 4
    (entry,) = twins.graphed._region.entries  # type: ignore[union-attr]
    assert len(entry.pair.backwards) == 2  # type: ignore[attr-defined]


def test_results_whose_gradients_nobody_wants() -> None:
    twins = PairTwins(world_of(smooth), lambda w, net, number: net(batch(number)).sum().item())
    assert twins.run(14) == 0
    assert twins.refused.why == "its results need gradients"


@pytest.mark.parametrize("number", range(0, 60, 3))
@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_in_a_capture_leaves_nothing_behind(kind: type[BaseException], number: int) -> None:
    """At the `number`-th operator that a capture records, of the forward or of the backward."""
    from grape.runtime.backends.reference.capture import CaptureMode

    recorded = 0
    original = CaptureMode._dispatch

    def dispatch(self: Any, *args: Any) -> Any:
        nonlocal recorded
        recorded += 1
        if recorded == number + 1:
            raise kind("here")
        return original(self, *args)

    twins = PairTwins(world_of(perceptron), plain)
    graphed, random, before = twins.graphed, None, None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CaptureMode, "_dispatch", dispatch)
        for index in range(1, 9):
            w = twins.worlds[1]
            state = {name: value.clone() for name, value in w.net.state_dict().items()}
            weights = [*w.net.parameters()]
            try:
                plain(w, twins._call, index)
            except KeyboardInterrupt:
                assert recorded == number + 1
                now = w.net.state_dict()
                parameters = [name for name, _ in w.net.named_parameters()]
                assert all(torch.equal(now[name], state[name]) for name in parameters)
            assert all(one is other for one, other in zip(weights, w.net.parameters(), strict=True))
            assert not torch.is_autocast_enabled("cpu")
    assert graphed is not None and random is before is None


def test_unused_gradients_are_told_before_anything_is_captured() -> None:
    twins = PairTwins(world_of(smooth), lambda w, net, number: net(batch(number)).sum().item())
    twins.run(3)
    evidence = twins.graphed.evidence()
    assert evidence is not None
    assert evidence.refused is not None
    assert (evidence.outcome, evidence.refused.why) == ("refused", "its results need gradients")


def test_more_forwards_before_a_backward_than_there_are_pairs() -> None:
    def step(w: World, net: Callable[..., Any], number: int) -> Any:
        w.optimizer.zero_grad()
        losses = [net(batch(number + i)).pow(2).sum() for i in range(7)]
        sum(losses).backward()
        return [p.grad for p in w.net.parameters()]

    twins = PairTwins(world_of(perceptron), step)
    twins.run(8)
    assert twins.run(2) == 8
    region = twins.graphed._region
    assert region is not None
    assert len(region.captures.costs.durations_ms) == 4


class Detaching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.tanh(self.body(x)).exp(), x.detach()[1:]


@pytest.mark.parametrize("requires", [False, True])
def test_a_result_that_is_a_part_of_the_argument(requires: bool) -> None:
    """As a view it is made anew from the argument, and would have a graph where eager's has none."""

    def step(w: World, net: Callable[..., Any], number: int) -> Any:
        out, part = net(batch(number).requires_grad_(requires))
        out.sum().backward()
        return out, part, part.requires_grad

    twins = PairTwins(world_of(Detaching), step)
    twins.run(12)
    assert twins.run(2) == (0 if requires else 2), twins.refused


class Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.body(x)) * self.scale


def _other_memory(w: World, x: torch.Tensor, out: torch.Tensor) -> None:
    w.net.scale.data = w.net.scale.data * 3


def test_a_parameter_that_was_saved_itself_is_read_where_it_lies_now() -> None:
    """Of `Linear` a view is saved, which keeps the old memory; a factor is saved itself, and follows `.data`."""
    twins = PairTwins(world_of(Scaling), plain)
    twins.run(12)
    assert twins.run(1, _changing(_other_memory)) == 1
    assert twins.last_errors == [None, None]


@pytest.mark.parametrize(("budget", "replays"), [(1_000, False), (1_000_000, True)])
def test_a_memory_budget_counts_pairs(budget: int, replays: bool) -> None:
    twins = PairTwins(world_of(perceptron), plain)
    twins.graphed._memory_budget = budget
    twins.run(14)
    assert (twins.replays > 0) is replays
    if not replays:
        assert "memory budget" in twins.refused.why


LOOPS = {
    "in the loop": """
for x, y in data:
    optimizer.zero_grad()
    out = model(x)
    loss = torch.nn.functional.mse_loss(out, y)
    losses.append(loss.item())
    loss.backward()
    optimizer.step()
""",
    "in a function": """
def step(x, y):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    losses.append(loss.item())
    loss.backward()
    optimizer.step()
for x, y in data:
    step(x, y)
""",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_cell_gets_no_pairs(loop: str, closed_engine: None) -> None:
    """Whoever looks at the graph behind the results can tell a pair: only who asks for `grape.graph` gets one."""
    source = (
        "torch.manual_seed(0)\nlosses = []\n"
        "model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))\n"
        "optimizer = torch.optim.Adam(model.parameters(), lr=0.01)\n"
        "data = [(torch.randn(6, 4), torch.randn(6, 2)) for _ in range(30)]\n" + LOOPS[loop]
    )
    plain_cell, _ = run_cell(source, outline=False, times=1)
    with eager_to_graph():
        outlined, _ = run_cell(source, outline=True, times=1)
    assert outlined.error is None
    same(plain_cell.values["losses"], outlined.values["losses"])
    (evidence,) = (one.evidence() for one in engine().interceptor.regions if one.name.startswith("Sequential (model"))
    assert evidence.refused is not None and evidence.refused.why == "its results need gradients"
    assert evidence.replays == 0


class _CopiesOfCuda(ReferenceBackend):
    """Copies as the CUDA backend does, in the modes of the caller."""

    copy = CudaBackend.copy  # type: ignore[assignment]


def test_a_strided_argument_that_requires_a_gradient_is_copied() -> None:
    """Its placeholder stands for a leaf: no view of that may be written while gradients are recorded."""

    def build() -> World:
        return World(net=nn.Linear(4, 3), scale=nn.Parameter(torch.ones(4)))

    def step(w: World, call: Any, number: int) -> Any:
        x = (torch.linspace(-1, 1, 24).view(2, 4, 3) * number * w.scale[:, None]).transpose(1, 2)
        out = call(x)
        out.pow(2).sum().backward()
        return out.detach()

    twins = PairTwins(build, step, backend=_CopiesOfCuda())
    twins.run(10)
    assert twins.replays > 2
