"""Models that most people run: classifying images by ResNet-50 and by a vision transformer, sampling with a U-Net."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from ..job import Group, Job, Size
from .vision import seeing

__all__ = ["EVERYDAY"]

EVERYDAY = Group("everyday", "Everyday models")


@EVERYDAY.row("ResNet-50, batch 8, inference", "torchvision")
def resnet50(size: Size) -> Job:
    from torchvision.models import resnet50 as build

    return seeing(size, size.build(build), size.of(8, 1), size.of(224, 32))


@EVERYDAY.row("ViT-B/16, batch 8, inference", "torchvision")
def vit_b_16(size: Size) -> Job:
    from torchvision.models import VisionTransformer

    depth, width = size.of((12, 768), (2, 32))
    shape = {"image_size": size.of(224, 32), "patch_size": 16, "num_layers": depth, "num_heads": size.of(12, 2)}
    model = size.build(lambda: VisionTransformer(hidden_dim=width, mlp_dim=4 * width, **shape))
    return seeing(size, model, size.of(8, 1), size.of(224, 32))


class Block(nn.Module):
    """A residual block of a U-Net, `[batch, channels, side, side]`, told the time by `[batch, features]`."""

    def __init__(self, into: int, out: int, features: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(4, into), nn.GroupNorm(4, out)])
        self.convolutions = nn.ModuleList([nn.Conv2d(into, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)])
        self.time, self.skip = nn.Linear(features, out), nn.Conv2d(into, out, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.convolutions[0](F.silu(self.norms[0](x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.convolutions[1](F.silu(self.norms[1](h)))


class UNet(nn.Module):
    """Noise of images `[batch, 3, side, side]` at times `[batch]`, as in denoising diffusion (Ho et al. 2020)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        features, widths = 4 * width, [width, 2 * width, 4 * width]
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, features), nn.SiLU(), nn.Linear(features, features))
        self.begin, self.end = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down = nn.ModuleList([Block(a, b, features) for a, b in zip([width, *widths], widths, strict=False)])
        self.middle = Block(widths[-1], widths[-1], features)
        backwards = [*reversed(widths), width]
        self.up = nn.ModuleList([Block(2 * a, b, features) for a, b in pairwise(backwards)])

    def forward(self, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        half = self.width // 2
        rates = torch.exp(torch.arange(half, device=x.device) * (-math.log(10000) / half))
        angles = times[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1).to(x.dtype))
        x, kept = self.begin(x), []
        for block in self.down:
            x = block(x, time)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1), time)
        return self.end(x)


SAMPLE = """
x = noise
for index in range(len(times) - 1):
    x = denoise(x, index)
results = [x]
"""


@EVERYDAY.row("U-Net, batch 4, 64 x 64, samples in 25 steps")
def unet_sampling(size: Size) -> Job:
    batch, side, steps = size.of((4, 64, 25), (1, 8, 3))
    model = size.build(lambda: UNet(size.of(64, 8))).eval().requires_grad_(False)
    times = torch.linspace(size.of(999, 39), 0, steps + 1, device=size.device).long()
    kept = torch.linspace(0.999, 0.02, size.of(1000, 40), device=size.device).cumprod(0).clamp_min(1e-4)[times]
    kept = kept.to(size.half)
    noise = size.randn(batch, 3, side, side)

    def denoise(x: torch.Tensor, index: int) -> torch.Tensor:
        """A step without noise of its own (DDIM, Song et al. 2021)."""
        with torch.no_grad():
            now, later = kept[index], kept[index + 1]
            said = model(x, times[index].expand(x.shape[0]))
            clean = (x - (1 - now).sqrt() * said) / now.sqrt()
            return later.sqrt() * clean.clamp(-1, 1) + (1 - later).sqrt() * said

    names = {"denoise": denoise, "times": times, "noise": noise, "model": model}
    no = "a step takes its number from the host: an expert would rewrite the loop"
    return Job(names=names, cells=[SAMPLE], steps=steps, modules=[model], fixed=True, by_hand=no)
