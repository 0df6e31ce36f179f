"""Notebook cells of a molecular dynamics, as people write them. What a form's `use` does, nothing here knows of Grape,
but for `padded`, which calls `grape.pad_edges`.

The network is one of continuous-filter convolutions: what an atom hears of a neighbour is weighted, channel by channel,
by a network of their distance (Schuett et al., "SchNet", NeurIPS 2017). Each atom is held at its site by a spring, so
that weights from a random generator make no molecule that flies apart. Units are reduced: masses and springs are 1.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FORMS", "MOLECULES", "SMALL", "Form"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """`define` makes the model, `use` runs the steps and binds `result`, whatever else it binds."""

    what: str
    define: str
    use: str


MOLECULES: dict[str, dict[str, object]] = {
    "22": {"atoms": 22, "width": 128, "bases": 50, "layers": 6},
    "166": {"atoms": 166, "width": 128, "bases": 50, "layers": 6},
}
SMALL: dict[str, dict[str, object]] = {
    "22": {"atoms": 22, "width": 16, "bases": 8, "layers": 2},
    "166": {"atoms": 40, "width": 16, "bases": 8, "layers": 2},
}

_MOLECULE = """\
import math

import torch
from torch import nn

torch.manual_seed(0)
cutoff, spacing, dt = 4.0, 1.6, 0.02
side = math.ceil(atoms ** (1 / 3))
line = torch.arange(side) * spacing
sites = torch.cartesian_prod(line, line, line)[:atoms].to(device)
kinds = torch.randint(1, 9, (atoms,)).to(device)
start = sites + 0.1 * torch.randn(atoms, 3).to(device)
speeds = 0.3 * torch.randn(atoms, 3).to(device)


def dense(inside, outside):
    return nn.Sequential(nn.Linear(inside, outside), nn.SiLU(), nn.Linear(outside, outside))


"""

_LIST = (
    _MOLECULE
    + """\
class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter, self.after = dense(bases, width), dense(width, width)
        self.before = nn.Linear(width, width, bias=False)

    def forward(self, features, i, j, waves, fade):
        messages = self.before(features)[j] * self.filter(waves) * fade
        heard = torch.zeros_like(features).index_add(0, i, messages)
        return features + self.after(heard)


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, width)
        self.register_buffer("kinds", kinds)
        self.register_buffer("sites", sites)
        self.layers = nn.ModuleList(Convolution() for _ in range(layers))
        self.out = nn.Sequential(nn.Linear(width, width // 2), nn.SiLU(), nn.Linear(width // 2, 1))
        self.register_buffer("centers", torch.linspace(0, cutoff, bases))

    def forward(self, positions, i, j):
        positions = positions.detach().requires_grad_()
        distances = (positions[i] - positions[j]).norm(dim=-1, keepdim=True)
        fade = 0.5 * (torch.cos(math.pi * distances / cutoff) + 1) * (distances < cutoff)
        waves = torch.exp(-((distances - self.centers) ** 2) * 10)
        features = self.embedding(self.kinds)
        for layer in self.layers:
            features = layer(features, i, j, waves, fade)
        energy = self.out(features).sum() + 0.5 * (positions - self.sites).square().sum()
        (slope,) = torch.autograd.grad(energy, positions)
        return energy.detach(), -slope


model = Potential().to(device).eval()
"""
)

_DENSE = (
    _MOLECULE
    + """\
class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter, self.after = dense(bases, width), dense(width, width)
        self.before = nn.Linear(width, width, bias=False)

    def forward(self, features, waves, fade):
        heard = (self.before(features) * self.filter(waves) * fade).sum(1)
        return features + self.after(heard)


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, width)
        self.register_buffer("kinds", kinds)
        self.register_buffer("sites", sites)
        self.layers = nn.ModuleList(Convolution() for _ in range(layers))
        self.out = nn.Sequential(nn.Linear(width, width // 2), nn.SiLU(), nn.Linear(width // 2, 1))
        self.register_buffer("centers", torch.linspace(0, cutoff, bases))
        self.register_buffer("others", ~torch.eye(atoms, dtype=torch.bool))

    def forward(self, positions):
        positions = positions.detach().requires_grad_()
        apart = positions[:, None] - positions
        distances = (apart.square().sum(-1, keepdim=True) + ~self.others[..., None]).sqrt()  # 1 from itself
        fade = 0.5 * (torch.cos(math.pi * distances / cutoff) + 1)
        fade = fade * ((distances < cutoff) & self.others[..., None])
        waves = torch.exp(-((distances - self.centers) ** 2) * 10)
        features = self.embedding(self.kinds)
        for layer in self.layers:
            features = layer(features, waves, fade)
        energy = self.out(features).sum() + 0.5 * (positions - self.sites).square().sum()
        (slope,) = torch.autograd.grad(energy, positions)
        return energy.detach(), -slope


model = Potential().to(device).eval()
"""
)

_DENSE_USE = """\
positions, velocities, energies = start.clone(), speeds.clone(), []
energy, forces = model(positions)
for step in range(steps):
    velocities = velocities + 0.5 * dt * forces
    positions = positions + dt * velocities
    energy, forces = model(positions)
    velocities = velocities + 0.5 * dt * forces
    if step % 10 == 0:
        energies.append((energy + 0.5 * velocities.square().sum()).item())
result = positions, velocities, forces
"""

_LIST_USE = """\
def neighbours(positions):
    distances = (positions[:, None] - positions).norm(dim=-1)
    near = (distances < cutoff + 0.5) & (distances > 0)
    return near.nonzero(as_tuple=True)


positions, velocities, energies = start.clone(), speeds.clone(), []
i, j = neighbours(positions)
energy, forces = model(positions, i, j)
for step in range(steps):
    if step % 10 == 0:
        i, j = neighbours(positions)
    velocities = velocities + 0.5 * dt * forces
    positions = positions + dt * velocities
    energy, forces = model(positions, i, j)
    velocities = velocities + 0.5 * dt * forces
    if step % 10 == 0:
        energies.append((energy + 0.5 * velocities.square().sum()).item())
result = positions, velocities, forces
"""

_FOUND = "near.nonzero(as_tuple=True)"
assert _FOUND in _LIST_USE

FORMS = {
    "dense": Form(what="all pairs of atoms, with a mask", define=_DENSE, use=_DENSE_USE),
    "list": Form(what="a neighbour list, as long as it is", define=_LIST, use=_LIST_USE),
    "padded": Form(
        what="a neighbour list, padded to a few lengths",
        define=_LIST,
        use="import grape\n" + _LIST_USE.replace(_FOUND, f"grape.pad_edges({_FOUND}, distances, cutoff + 0.5)"),
    ),
}
