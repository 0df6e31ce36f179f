"""Vision models of GraCE's evaluation (OSDI 2026), and DCGAN by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..job import Group, Job, Size, inference, resetting, training

__all__ = ["VISION"]

VISION = Group("vision", "Vision models (GraCE, OSDI 2026)")


def seeing(size: Size, model: Any, batch: int, side: int) -> Job:
    model = model.to(memory_format=torch.contiguous_format)
    return inference(size, model, [(size.randn(batch, 3, side, side),) for _ in range(2)])


@VISION.row("DenseNet-121, batch 4, inference", "torchvision")
def densenet121(size: Size) -> Job:
    from torchvision.models import densenet121 as build

    return seeing(size, size.build(build), size.of(4, 1), size.of(224, 32))


@VISION.row("DenseNet-121, batch 16, training", "torchvision")
def densenet121_training(size: Size) -> Job:
    from torchvision.models import densenet121 as build

    model = size.build(lambda: build(num_classes=10), torch.float32)
    return classifying(size, model, size.of(16, 2), size.of(224, 32))


def classifying(size: Size, model: Any, batch: int, side: int) -> Job:
    shape = (batch, 3, side, side)
    kinds = [torch.randint(0, 10, (batch,)).to(size.device) for _ in range(2)]
    inputs = [(size.randn(*shape, dtype=torch.float32), kind) for kind in kinds]
    loss = lambda images, kinds: F.cross_entropy(model(images).float(), kinds)  # noqa: E731
    return training(size, model, inputs, loss, make=torch.optim.SGD)


@VISION.row("AlexNet, batch 128, inference", "torchvision")
def alexnet(size: Size) -> Job:
    from torchvision.models import alexnet as build

    return seeing(size, size.build(build), size.of(128, 1), size.of(224, 64))


@VISION.row("lcnet_050, batch 64, inference", "timm")
def lcnet_050(size: Size) -> Job:
    import timm

    return seeing(size, size.build(lambda: timm.create_model("lcnet_050")), size.of(64, 1), size.of(224, 32))


@VISION.row("lcnet_050, batch 64, training", "timm")
def lcnet_050_training(size: Size) -> Job:
    import timm

    model = size.build(lambda: timm.create_model("lcnet_050", num_classes=10), torch.float32)
    return classifying(size, model, size.of(64, 2), size.of(224, 32))


@VISION.row("Mask R-CNN with ResNet-50, batch 1, inference", "torchvision")
def mask_rcnn(size: Size) -> Job:
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    return detecting(size, maskrcnn_resnet50_fpn, [size.of((480, 640), (64, 64))], size.of(480, 64))


def detecting(size: Size, make: Any, sides: list[tuple[int, int]], smallest: int) -> Job:
    """An image a step; weights are random, so the scores are low, and all boxes are kept."""
    kept, found = size.of((100, 20), (6, 3))
    more = {"min_size": smallest, "max_size": 2 * smallest, "box_score_thresh": 0.0, "box_detections_per_img": found}
    few = {"rpn_pre_nms_top_n_test": 2 * kept, "rpn_post_nms_top_n_test": kept}
    model = size.build(lambda: make(weights=None, weights_backbone=None, num_classes=5, **more, **few), torch.float32)
    inputs = [(size.randn(3, *side, dtype=torch.float32),) for side in sides]

    def detect(image: torch.Tensor) -> list[torch.Tensor]:
        (found,) = model([image])
        return [found["boxes"], found["scores"], found["labels"]]

    return inference(size, model, inputs, detect)


class Generator(nn.Sequential):
    """Noise `[batch, 100, 1, 1]` to images `[batch, 3, 64, 64]`."""

    def __init__(self, width: int) -> None:
        parts: list[nn.Module] = [nn.ConvTranspose2d(100, 8 * width, 4, bias=False)]
        for factor in (8, 4, 2):
            parts += [nn.BatchNorm2d(factor * width), nn.ReLU()]
            parts.append(nn.ConvTranspose2d(factor * width, factor * width // 2, 4, 2, 1, bias=False))
        parts += [nn.BatchNorm2d(width), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh()]
        super().__init__(*parts)


class Critic(nn.Sequential):
    """Images `[batch, 3, 64, 64]` to logits `[batch]`."""

    def __init__(self, width: int) -> None:
        parts: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
        for factor in (1, 2, 4):
            parts += [nn.Conv2d(factor * width, 2 * factor * width, 4, 2, 1, bias=False)]
            parts += [nn.BatchNorm2d(2 * factor * width), nn.LeakyReLU(0.2)]
        super().__init__(*parts, nn.Conv2d(8 * width, 1, 4, bias=False), nn.Flatten(0))


@VISION.row("DCGAN, batch 32, generates")
def dcgan(size: Size) -> Job:
    model = size.build(lambda: Generator(size.of(64, 4)))
    return inference(size, model, [(size.randn(size.of(32, 2), 100, 1, 1),) for _ in range(2)])


@VISION.row("DCGAN, batch 32, training of both networks")
def dcgan_training(size: Size) -> Job:
    width, batch = size.of((64, 32), (4, 2))
    generator = size.build(lambda: Generator(width), torch.float32).train()
    critic = size.build(lambda: Critic(width), torch.float32).train()
    more = {"lr": 2e-4, "betas": (0.5, 0.999), **size.capturable()}
    optimizers = [torch.optim.Adam(network.parameters(), **more) for network in (critic, generator)]
    ones, zeros = torch.ones(batch, device=size.device), torch.zeros(batch, device=size.device)

    def step(images: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizers[0].zero_grad()
        made = generator(noise)
        against = F.binary_cross_entropy_with_logits(critic(images), ones)
        against = against + F.binary_cross_entropy_with_logits(critic(made.detach()), zeros)
        against.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        fooled = F.binary_cross_entropy_with_logits(critic(made), ones)
        fooled.backward()
        optimizers[1].step()
        return against.detach(), fooled.detach()

    single = torch.float32
    inputs = [
        (size.randn(batch, 3, 64, 64, dtype=single), size.randn(batch, 100, 1, 1, dtype=single)) for _ in range(2)
    ]
    return Job(
        names={"step": step, "inputs": inputs, "generator": generator, "critic": critic, "optimizers": optimizers},
        modules=[generator, critic],
        reset=resetting([generator, critic], optimizers),
        state=lambda: [*generator.parameters(), *critic.parameters()],
    )
