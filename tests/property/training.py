"""Random training programs: a small model, a loss, an optimizer, and what people do around a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from grape.runtime.backends.protocol import Backend
from tests.property.programs import Twins, World

__all__ = ["EVENTS", "MODELS", "OPTIMIZERS", "TrainingProgram", "run_training"]

WIDTH, CLASSES, WORDS = 6, 3, 7


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.one = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(F.gelu(self.one(self.norm(x))))
        return self.head(x + self.one(x))  # `one` is used twice


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(), nn.MaxPool1d(2))
        self.head = nn.Linear(4 * (WIDTH // 2), CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x[:, None]).flatten(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x
        for word in (x * 2).long().abs().clamp_max(WORDS - 1).t()[:3]:
            h = self.cell(self.words(word), h)
        return self.head(h)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.unused = nn.Parameter(torch.ones(2))
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.stack([x, x.flip(1), x * self.scale], 1)
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        checkpoint = torch.utils.checkpoint.checkpoint
        return self.head(checkpoint(self.body, x, use_reentrant=False, preserve_rng_state=False))


class Unrepeatable(nn.Module):
    """Dropout that activation checkpointing has to draw twice from one random state."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.5), nn.Linear(8, WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": perceptron,
    "residual": Residual,
    "convolution": Convolution,
    "recurrent": Recurrent,
    "attention": Attention,
    "recomputed": Recomputed,
    "unrepeatable": Unrepeatable,
}


class Signed(torch.optim.Optimizer):
    """An optimizer that Grape does not know: signs of an average, with a trust ratio and Nesterov's look ahead."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "beta": 0.8})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p)
                    state["steps"] = torch.zeros((), device=p.device)
                state["steps"] += 1
                state["average"].lerp_(p.grad, 1 - group["beta"])
                ahead = state["average"].lerp(p.grad, 0.1).sign_()
                p.addcmul_(ahead, p.norm().clamp_min(0.1) / state["steps"].sqrt(), value=-group["lr"])


def _tensor(device: torch.device, value: float) -> torch.Tensor:
    return torch.tensor(value, device=device)


OPTIMIZERS: dict[str, Callable[[Any, torch.device], torch.optim.Optimizer]] = {
    "sgd": lambda p, d: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p, d: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd foreach": lambda p, d: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=True),
    "sgd tensor rate": lambda p, d: torch.optim.SGD(p, lr=_tensor(d, 0.05)),
    "adam": lambda p, d: torch.optim.Adam(p, lr=0.01),
    "adam fused": lambda p, d: torch.optim.Adam(p, lr=0.01, fused=True),
    "adamw fused, tensor rate": lambda p, d: torch.optim.AdamW(p, lr=_tensor(d, 0.01), fused=True, amsgrad=True),
    "adam capturable": lambda p, d: torch.optim.Adam(p, lr=_tensor(d, 0.01), capturable=True, foreach=False),
    "adamw capturable": lambda p, d: torch.optim.AdamW(p, lr=0.01, capturable=True, amsgrad=True),
    "rmsprop": lambda p, d: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, capturable=True),
    "signed": lambda p, d: Signed(p, 0.02),
}
CLIPS = ("none", "norm", "value")
ZEROS = ("first", "first in place", "last")
RESULTS = ("loss", "number", "loss and norm", "mapping", "nothing")


@dataclasses.dataclass(frozen=True)
class TrainingProgram:
    """One program. `every` is the number of calls to one step of the optimizer; `rows` the batch sizes in turn."""

    model: str
    loss: str
    optimizer: str
    autocast: bool
    clip: str
    zero: str
    result: str
    every: int
    rows: tuple[int, ...]
    frozen: bool
    schedule: int
    events: tuple[tuple[int, str], ...]
    in_place: bool = False

    @staticmethod
    def strategy() -> st.SearchStrategy[TrainingProgram]:
        common = [name for name in OPTIMIZERS if name != "adam"]
        return st.builds(
            TrainingProgram,
            model=st.sampled_from([*MODELS] * 3 + [*MODELS][:-1]),
            loss=st.sampled_from(("classes", "squares", "smooth")),
            optimizer=st.sampled_from([*common, *common, "adam"]),
            autocast=st.booleans(),
            clip=st.sampled_from(CLIPS),
            zero=st.sampled_from(ZEROS),
            result=st.sampled_from(RESULTS),
            every=st.sampled_from((1, 1, 1, 2)),
            rows=st.sampled_from(((4,), (4,), (4, 5))),
            frozen=st.booleans(),
            schedule=st.sampled_from((0, 0, 11, 1)),
            events=st.lists(st.tuples(st.integers(6, 18), st.sampled_from(sorted(EVENTS))), max_size=2).map(tuple),
            in_place=st.booleans(),
        )

    def build(self, device: torch.device) -> World:
        torch.manual_seed(3)
        model = MODELS[self.model]().to(device)
        if self.frozen:
            next(model.parameters()).requires_grad_(False)
        optimizer = OPTIMIZERS[self.optimizer](model.parameters(), device)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, self.schedule, 0.7) if self.schedule else None
        world = World(model=model, optimizer=optimizer, held=[])
        world.extras = scheduler
        world.function = self.step_of(world, device.type)
        return world

    def step_of(self, world: World, kind: str) -> Callable[..., Any]:
        model, optimizer = world.model, world.optimizer
        autocast, clip, zero, result, loss_of = self.autocast, self.clip, self.zero, self.result, self.loss

        def step(x: torch.Tensor, y: torch.Tensor, last: bool) -> Any:
            if zero != "last" and last:
                optimizer.zero_grad(set_to_none=zero == "first")
            with torch.autocast(kind, torch.bfloat16) if autocast else nullcontext():
                out = model(x)
            if loss_of == "classes":
                loss = F.cross_entropy(out.float(), y)
            elif loss_of == "squares":
                loss = F.mse_loss(out.float(), F.one_hot(y, CLASSES).float())
            else:
                loss = F.smooth_l1_loss(out.float(), out.detach().float().roll(1, 0))
            loss.backward()
            norm = None
            if last:
                if clip == "norm":
                    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                elif clip == "value":
                    torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
                optimizer.step()
                if zero == "last":
                    optimizer.zero_grad()
            if result == "loss":
                return loss
            if result == "number":
                return loss.detach()
            if result == "loss and norm":
                return loss, norm
            if result == "mapping":
                return {"loss": loss, "out": out.detach().argmax(-1)}
            return None

        return step


def _hold(w: World) -> None:
    w.held.append([p.grad for p in w.model.parameters()])


def _reload(w: World) -> None:
    state = {name: value.clone() for name, value in w.model.state_dict().items()}
    w.model.load_state_dict(state)


def _assign(w: World) -> None:
    state = {name: value.clone() for name, value in w.model.state_dict().items()}
    w.model.load_state_dict(state, assign=True)


def _replace(w: World) -> None:
    for p in w.model.parameters():
        if p.grad is not None:
            p.grad = p.grad * 0.5


def _noisy(w: World) -> None:
    for p in w.model.parameters():
        p.data.add_(torch.randn_like(p), alpha=0.01)


def _view(w: World) -> None:
    w.held.append([p.grad.view(-1)[:1] for p in w.model.parameters() if p.grad is not None])


def _hook(w: World) -> None:
    next(p for p in w.model.parameters() if p.requires_grad).register_hook(lambda g: g * 2)


def _thaw(w: World) -> None:
    for p in w.model.parameters():
        p.requires_grad_(True)


EVENTS: dict[str, Callable[[World], Any]] = {
    "load a state in place": _reload,
    "load a state": _assign,
    "load the optimizer's state": lambda w: w.optimizer.load_state_dict(w.optimizer.state_dict()),
    "evaluate": lambda w: w.model.eval(),
    "hold gradients": _hold,
    "hold views of gradients": _view,
    "let go": lambda w: w.held.clear(),
    "zero": lambda w: w.optimizer.zero_grad(),
    "zero in place": lambda w: w.optimizer.zero_grad(set_to_none=False),
    "replace gradients": _replace,
    "change parameters": _noisy,
    "hook": _hook,
    "thaw": _thaw,
    "another rate": lambda w: w.optimizer.param_groups[0].__setitem__("lr", w.optimizer.param_groups[0]["lr"] * 0.5),
}


def run_training(program: TrainingProgram, backend: Backend, calls: int = 20) -> Twins:
    """Run it eagerly and through Grape; raise AssertionError at the first difference. The twins come back released."""
    device = backend.device
    generator = torch.Generator().manual_seed(5)
    batches = [
        (torch.randn(rows, WIDTH, generator=generator), torch.randint(0, CLASSES, (rows,), generator=generator))
        for rows in (*program.rows, *program.rows)
    ]
    batches = [(x.to(device), y.to(device)) for x, y in batches]
    twins = Twins(lambda: program.build(device), backend, in_place=program.in_place)
    # A cell is used three times: autograd adds up the parts of its gradients in place, but not where a mode watches.
    twins.versions = program.model != "recurrent"
    events = dict(program.events)
    try:
        for index in range(calls):
            if index in events:
                twins.both(EVENTS[events[index]])
            x, y = batches[index % len(batches)]
            last = index % program.every == program.every - 1
            twins.call(lambda w, x=x, y=y, last=last: ((x, y, last), {}), keep=index < 3)
            if program.schedule:
                twins.both(lambda w: w.extras.step())
    finally:
        twins.close()
    return twins
