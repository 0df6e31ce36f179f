"""Programs whose shapes change from step to step, or whose work does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..job import Group, Job, Size, inference, training
from .vision import detecting

__all__ = ["RAGGED"]

RAGGED = Group("ragged", "Raggedness: shapes and work that change from step to step")


@RAGGED.row("a detector (Faster R-CNN, MobileNet) over images of 11 resolutions, inference", "torchvision")
def detector_resolutions(size: Size) -> Job:
    from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_fpn

    sides = [(320 + 32 * index, 480 + 16 * index) for index in range(11)]
    return detecting(size, fasterrcnn_mobilenet_v3_large_fpn, size.of(sides, [(64, 64), (64, 96)]), size.of(320, 64))


@RAGGED.row("Longformer-base, batch 1, documents of 8 lengths, inference", "transformers")
def longformer(size: Size) -> Job:
    from transformers import LongformerConfig, LongformerModel

    tiny = {
        **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
        **{"vocab_size": 99, "max_position_embeddings": 130, "attention_window": [8, 8]},
    }
    # A table of 512 positions is the default; documents need more.
    config = LongformerConfig(**size.of({"max_position_embeddings": 4098}, tiny))
    model = size.build(lambda: LongformerModel(config))
    lengths = size.of([700 + 190 * index for index in range(8)], [12, 20])
    inputs = [(size.tokens(model.config.vocab_size, 1, length),) for length in lengths]
    return inference(size, model, inputs, lambda ids: model(input_ids=ids).last_hidden_state)


@RAGGED.row("SwitchTransformers-base of 8 experts, 8 x 64, training", "transformers")
def switch_transformers(size: Size) -> Job:
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    tiny = {
        **{"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2},
        **{"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "vocab_size": 99, "num_experts": 2},
    }
    fixed = {"decoder_start_token_id": 0, "dropout_rate": 0.0, "router_jitter_noise": 0.0}
    config = SwitchTransformersConfig(**size.of({"num_experts": 8}, tiny), **fixed)
    model = size.build(lambda: SwitchTransformersForConditionalGeneration(config), torch.float32)
    shape = size.of((8, 64), (2, 8))
    inputs = [(size.tokens(model.config.vocab_size, *shape),) for _ in range(2)]
    return training(size, model, inputs, lambda ids: model(input_ids=ids, labels=ids).loss, autocast=False)


@RAGGED.row("torchdiffeq: a neural ODE, dopri5, training", "torchdiffeq")
def neural_ode(size: Size) -> Job:
    from torchdiffeq import odeint

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return self.net(y**3)

    field = Field().to(size.device)
    times = torch.linspace(0.0, 1.0, 10, device=size.device)
    inputs = [(size.randn(20, 2, dtype=torch.float32), size.randn(10, 20, 2, dtype=torch.float32)) for _ in range(3)]

    def loss(start: Tensor, wanted: Tensor) -> Tensor:
        return (odeint(field, start, times, method="dopri5") - wanted).abs().mean()

    return training(size, field, inputs, loss, autocast=False)


def message_passing(size: Size) -> Any:
    from torch_geometric.nn import GraphSAGE

    return GraphSAGE(*size.of((128, 128, 3, 16), (8, 8, 2, 4))).to(size.device)


@RAGGED.row("PyG: GraphSAGE on minibatches of 12 sizes, training", "torch_geometric")
def pyg_minibatches(size: Size) -> Job:
    model = message_passing(size)
    width, classes, least = size.of((128, 16, 2000), (8, 4, 30))
    inputs = []
    for index in range(size.of(12, 2)):
        nodes = least + 131 * index
        edges = torch.randint(0, nodes, (2, 8 * nodes)).to(size.device)
        kinds = torch.randint(0, classes, (nodes,)).to(size.device)
        inputs.append((size.randn(nodes, width, dtype=torch.float32), edges, kinds))
    loss = lambda x, edges, kinds: F.cross_entropy(model(x, edges), kinds)  # noqa: E731
    return training(size, model, inputs, loss, autocast=False)


class Tagger(nn.Module):
    """An LSTM over sentences of many lengths, `[batch, length]` to `[batch, length, tags]`."""

    def __init__(self, words: int, width: int, tags: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width // 2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(width, tags)

    def forward(self, ids: Tensor) -> Tensor:
        return self.tags(self.lstm(self.words(ids))[0])


@RAGGED.row("an LSTM tagger over sentences of 20 lengths, training", ablations=("no_compression",))
def tagger_lengths(size: Size) -> Job:
    words, width, batch = size.of((8000, 256, 16), (50, 8, 2))
    model = Tagger(words, width, 12).to(size.device)
    lengths = torch.randperm(20, generator=torch.Generator().manual_seed(2)).add(8)[: size.of(20, 2)].tolist()
    shapes = [(batch, length) for length in lengths]
    inputs = [
        (torch.randint(0, words, shape).to(size.device), torch.randint(0, 12, shape).to(size.device))
        for shape in shapes
    ]
    loss = lambda ids, tags: F.cross_entropy(model(ids).flatten(0, 1), tags.flatten())  # noqa: E731
    return training(size, model, inputs, loss, autocast=False)
