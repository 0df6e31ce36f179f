"""Recommenders and simulation kernels of GraCE's evaluation (OSDI 2026), written anew in plain torch."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..job import Group, Job, Size, inference, training

__all__ = ["KERNELS"]

KERNELS = Group("kernels", "Recommenders and simulation kernels (GraCE, OSDI 2026)")


def mlp(*widths: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for before, after in pairwise(widths):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


class Recommender(nn.Module):
    """DLRM: dense features and rows of tables, and the products of each two of them."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables)])
        self.bottom = mlp(13, 4 * width, 2 * width, width)
        self.top = mlp(width + tables * (tables + 1) // 2, 4 * width, 2 * width, 1)
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """`dense` is [batch, 13], `sparse` [tables, batch, bag]."""
        x = self.bottom(dense)
        rows = torch.stack([x, *(table(ids) for table, ids in zip(self.tables, sparse, strict=True))], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))
        chosen = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, chosen], 1)).flatten()


def recommender(size: Size) -> tuple[Recommender, list[tuple[Tensor, Tensor, Tensor]]]:
    tables, rows, width, batch = size.of((26, 10000, 64, 512), (3, 40, 8, 4))
    model = size.build(lambda: Recommender(tables, rows, width), torch.float32)
    single = torch.float32
    inputs = [
        (
            size.randn(batch, 13, dtype=single),
            torch.randint(0, rows, (tables, batch, 4)).to(size.device),
            torch.rand(batch).to(size.device).round(),
        )
        for _ in range(2)
    ]
    return model, inputs


@KERNELS.row("DLRM, 26 tables, batch 512, inference")
def dlrm(size: Size) -> Job:
    model, inputs = recommender(size)
    return inference(size, model, [given[:2] for given in inputs])


@KERNELS.row("DLRM, 26 tables, batch 512, training")
def dlrm_training(size: Size) -> Job:
    model, inputs = recommender(size)

    def loss(dense: Tensor, sparse: Tensor, clicked: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(dense, sparse), clicked)

    return training(size, model, inputs, loss, make=torch.optim.SGD, autocast=False)


@KERNELS.row("DeepRecommender, batch 256, training")
def deep_recommender_training(size: Size) -> Job:
    """An autoencoder of ratings with SELU; only ratings that exist count."""
    items, batch, widths = size.of((17768, 256, (512, 512, 1024)), (50, 4, (16, 16, 32)))
    ways = [nn.Linear(a, b) for a, b in zip((items, *widths), widths, strict=False)]
    back = [nn.Linear(b, a) for a, b in reversed(list(zip((items, *widths), widths, strict=False)))]
    layers = [part for layer in (*ways, *back) for part in (layer, nn.SELU())]
    model = nn.Sequential(*layers).to(size.device)
    ratings = [torch.randint(0, 6, (batch, items)).float().to(size.device) for _ in range(2)]

    def loss(rated: Tensor) -> Tensor:
        exists = rated != 0
        return ((model(rated) - rated).square() * exists).sum() / exists.sum()

    inputs = [(rated,) for rated in ratings]
    return training(size, model, inputs, loss, make=torch.optim.SGD, autocast=False)


class Density(nn.Module):
    """The density of sea water by the international equation of state of 1980, of salt, temperature and pressure."""

    FRESH = (999.842594, 6.793952e-2, -9.09529e-3, 1.001685e-4, -1.120083e-6, 6.536332e-9)
    SALT = (8.24493e-1, -4.0899e-3, 7.6438e-5, -8.2467e-7, 5.3875e-9)
    ROOT = (-5.72466e-3, 1.0227e-4, -1.6546e-6)
    BULK = (19652.21, 148.4206, -2.327105, 1.360477e-2, -5.155288e-5)
    BULK_SALT = (54.6746, -0.603459, 1.09987e-2, -6.1670e-5)
    BULK_ROOT = (7.944e-2, 1.6483e-2, -5.3009e-4)
    PRESSED = (3.239908, 1.43713e-3, 1.16092e-4, -5.77905e-7)
    PRESSED_SALT = (2.2838e-3, -1.0981e-5, -1.6078e-6)
    TWICE = (8.50935e-5, -6.12293e-6, 5.2787e-8)
    TWICE_SALT = (-9.9348e-7, 2.0816e-8, 9.1697e-10)

    @staticmethod
    def polynomial(factors: tuple[float, ...], x: Tensor) -> Tensor:
        value = torch.full_like(x, factors[-1])
        for factor in factors[-2::-1]:
            value = value * x + factor
        return value

    def forward(self, salt: Tensor, warmth: Tensor, pressure: Tensor) -> Tensor:
        p, root = self.polynomial, salt.clamp(min=0).sqrt()
        surface = p(self.FRESH, warmth) + salt * (p(self.SALT, warmth) + root * p(self.ROOT, warmth))
        surface = surface + 4.8314e-4 * salt * salt
        bulk = p(self.BULK, warmth) + salt * (p(self.BULK_SALT, warmth) + root * p(self.BULK_ROOT, warmth))
        once = p(self.PRESSED, warmth) + salt * (p(self.PRESSED_SALT, warmth) + 1.91075e-4 * root)
        twice = p(self.TWICE, warmth) + salt * p(self.TWICE_SALT, warmth)
        return surface / (1 - pressure / (bulk + pressure * (once + pressure * twice)))


@KERNELS.row("equation of state of sea water, 1,048,576 points")
def equation_of_state(size: Size) -> Job:
    shape = size.of((256, 256, 16), (4, 4, 3))
    points = (torch.rand(shape) * 40, torch.rand(shape) * 30, torch.rand(shape) * 500)
    return inference(size, Density(), [tuple(point.to(size.device) for point in points) for _ in range(2)])


class Turbulence(nn.Module):
    """One step of turbulent kinetic energy in a column of water: shear, buoyancy and dissipation, and an implicit
    diffusion upwards and downwards, solved level by level.
    """

    def forward(self, energy: Tensor, u: Tensor, v: Tensor, buoyancy: Tensor, stress: Tensor) -> Tensor:
        """All but `stress` [x, y] are [x, y, levels]."""
        step, height, mixing = 0.5, 10.0, 0.1
        root = energy.clamp(min=1e-6).sqrt()
        stable = torch.diff(buoyancy, dim=-1, append=buoyancy[..., -1:]).clamp(min=1e-5)
        length = torch.minimum(root * (2 / stable).sqrt(), torch.full_like(root, 40.0))
        viscosity = (mixing * length * root).clamp(max=100.0)
        shear = torch.diff(u, dim=-1, append=u[..., -1:]).square() + torch.diff(v, dim=-1, append=v[..., -1:]).square()
        made = viscosity * shear / height**2 - viscosity / 10 * stable
        right = energy + step * torch.where(made > 0, made, made * 0.5)
        right[..., -1] += step * stress.abs() ** 1.5 / height
        between = step * 0.5 * (viscosity[..., 1:] + viscosity[..., :-1]) / height**2
        below, above = F.pad(between, (1, 0)), F.pad(between, (0, 1))
        middle = 1 + below + above + step * 0.7 * root / length.clamp(min=0.1)
        upper, value = [-above[..., 0] / middle[..., 0]], [right[..., 0] / middle[..., 0]]
        for level in range(1, energy.shape[-1]):
            pivot = middle[..., level] + below[..., level] * upper[-1]
            upper.append(-above[..., level] / pivot)
            value.append((right[..., level] + below[..., level] * value[-1]) / pivot)
        solved = [value[-1]]
        for level in range(energy.shape[-1] - 2, -1, -1):
            solved.append(value[level] - upper[level] * solved[-1])
        return torch.stack(solved[::-1], -1).clamp(min=0)


@KERNELS.row("turbulent kinetic energy, 128 x 128 columns of 26 levels")
def turbulence(size: Size) -> Job:
    shape = size.of((128, 128, 26), (4, 4, 5))
    columns = [torch.rand(shape).to(size.device) for _ in range(4)]
    stress = torch.rand(shape[:2]).to(size.device)
    return inference(size, Turbulence(), [(*columns, stress) for _ in range(2)])
