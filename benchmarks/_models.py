"""The models of `zoo.py`: small configurations with random weights, each with the plain loop that people run it in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from _measure import Workload
from torch import nn

__all__ = ["MODELS", "Scale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes of the models and of the runs. `tiny` is for a test on the CPU."""

    device: torch.device
    dtype: torch.dtype
    width: int
    layers: int
    heads: int
    vocabulary: int
    batch: int
    calls: int
    image: int

    @classmethod
    def named(cls, size: str, device: torch.device, dtype: torch.dtype) -> Scale:
        if size == "tiny":
            sizes = {"width": 32, "layers": 2, "heads": 2, "vocabulary": 64, "batch": 2, "calls": 14, "image": 32}
        else:
            sizes = {"width": 384, "layers": 6, "heads": 6, "vocabulary": 8000, "batch": 4, "calls": 64, "image": 224}
        return cls(device=device, dtype=dtype, **sizes)

    def place(self, module: nn.Module) -> Any:
        """The module as people would have it for inference here."""
        return module.to(device=self.device, dtype=self.dtype).eval().requires_grad_(False)

    def tokens(self, length: int) -> torch.Tensor:
        return torch.randint(3, self.vocabulary, (self.batch, length)).to(self.device)

    def randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape).to(device=self.device, dtype=self.dtype)


def generating(model: Any, calls: int, **inputs: torch.Tensor) -> list[torch.Tensor]:
    """Greedy `generate`: one call of the decoder per token, with a cache that grows."""
    found = model.generate(**inputs, max_new_tokens=calls, min_new_tokens=calls, do_sample=False)
    return [found]


def gpt2(scale: Scale) -> Workload:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=scale.width,
        n_layer=scale.layers,
        n_head=scale.heads,
        vocab_size=scale.vocabulary,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    model = scale.place(GPT2LMHeadModel(config))
    run = partial(generating, model, scale.calls, input_ids=scale.tokens(5))
    return Workload(name="gpt2", what="generate, greedy, growing cache", calls=scale.calls, run=run)


def opt(scale: Scale) -> Workload:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        hidden_size=scale.width,
        word_embed_proj_dim=scale.width,
        ffn_dim=4 * scale.width,
        num_hidden_layers=scale.layers,
        num_attention_heads=scale.heads,
        vocab_size=scale.vocabulary,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    model = scale.place(OPTForCausalLM(config))
    prompt = scale.tokens(5)
    run = partial(generating, model, scale.calls, input_ids=prompt, attention_mask=torch.ones_like(prompt))
    return Workload(name="opt", what="generate, greedy, growing cache and mask", calls=scale.calls, run=run)


def t5(scale: Scale) -> Workload:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=scale.width,
        d_kv=scale.width // scale.heads,
        d_ff=4 * scale.width,
        num_layers=scale.layers,
        num_heads=scale.heads,
        vocab_size=scale.vocabulary,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    )
    model = scale.place(T5ForConditionalGeneration(config))
    prompt = scale.tokens(20)
    run = partial(generating, model, scale.calls, input_ids=prompt, attention_mask=torch.ones_like(prompt))
    return Workload(name="t5", what="generate, greedy, encoder and decoder", calls=scale.calls, run=run)


def whisper(scale: Scale) -> Workload:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    frames = 16 * scale.image // 2 * 2
    config = WhisperConfig(
        d_model=scale.width,
        encoder_layers=scale.layers,
        decoder_layers=scale.layers,
        encoder_attention_heads=scale.heads,
        decoder_attention_heads=scale.heads,
        encoder_ffn_dim=4 * scale.width,
        decoder_ffn_dim=4 * scale.width,
        num_mel_bins=80,
        max_source_positions=frames // 2,
        vocab_size=scale.vocabulary,
        decoder_start_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=2,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = scale.place(WhisperForConditionalGeneration(config))
    run = partial(generating, model, scale.calls, input_features=scale.randn(scale.batch, 80, frames))
    return Workload(name="whisper", what=f"generate, greedy, {frames} mel frames", calls=scale.calls, run=run)


def calling(module: Any, inputs: Sequence[tuple[torch.Tensor, ...]], calls: int) -> list[torch.Tensor]:
    """A plain loop over inputs that take turns."""
    with torch.inference_mode():
        return [module(*inputs[index % len(inputs)]) for index in range(calls)]


class Pooled(nn.Module):
    """A transformers encoder and the mean of what it returns."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.encoder(pixels).last_hidden_state.mean(1)


def vit(scale: Scale) -> Workload:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=scale.width,
        num_hidden_layers=scale.layers,
        num_attention_heads=scale.heads,
        intermediate_size=4 * scale.width,
        image_size=scale.image,
        patch_size=16,
    )
    model = scale.place(Pooled(ViTModel(config)))
    images = [(scale.randn(scale.batch, 3, scale.image, scale.image),) for _ in range(3)]
    run = partial(calling, model, images, scale.calls)
    return Workload(name="vit", what=f"images of {scale.image} x {scale.image}", calls=scale.calls, run=run)


class Residual(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(x + self.norms[1](self.second(y)))


def cnn(scale: Scale) -> Workload:
    """A residual network, 10 classes, in plain torch."""
    channels = max(8, scale.width // 6)
    blocks = [Residual(channels) for _ in range(2 * scale.layers)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    stem = [nn.Conv2d(3, channels, 7, stride=4, padding=3), nn.ReLU()]
    model = scale.place(nn.Sequential(*stem, *blocks, *head))
    side = scale.image // 2
    images = [(scale.randn(scale.batch, 3, side, side),) for _ in range(3)]
    run = partial(calling, model, images, scale.calls)
    return Workload(name="cnn", what=f"residual network, images of {side} x {side}", calls=scale.calls, run=run)


class Speller(nn.Module):
    """An LSTM language model that is called once a token; its state goes in and comes out."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(
        self, token: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        found, state = self.lstm(self.embedding(token), state)
        return self.head(found), state


def spelling(model: Any, token: torch.Tensor, zeros: torch.Tensor, calls: int) -> list[torch.Tensor]:
    state, letters = (zeros, zeros), [token]
    with torch.inference_mode():
        for _ in range(calls):
            logits, state = model(letters[-1], state)
            letters.append(logits[:, -1:].argmax(-1))
    return [torch.cat(letters, 1), *state]


def lstm(scale: Scale) -> Workload:
    model = scale.place(Speller(scale.vocabulary, scale.width, 2))
    zeros = torch.zeros(2, scale.batch, scale.width, device=scale.device, dtype=scale.dtype)
    run = partial(spelling, model, scale.tokens(1), zeros, scale.calls)
    return Workload(name="lstm", what="a token a call, state fed back", calls=scale.calls, run=run)


class GraphNetwork(nn.Module):
    """Message passing by `index_add` and by `scatter_reduce`, in plain torch."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.messages = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(layers)])
        self.updates = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(layers)])

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = torch.relu(message(torch.cat([x[source], x[target]], 1)))
            received = torch.zeros_like(x).index_add(0, target, sent)
            largest = torch.zeros_like(x).scatter_reduce(0, target[:, None].expand_as(sent), sent, "amax")
            x = x + torch.relu(update(torch.cat([received, largest], 1)))
        return x


def gnn(scale: Scale, *, atomics: bool) -> Workload:
    """`atomics`: as torch runs it by default on a GPU, where sums of floats have no fixed order."""
    model = scale.place(GraphNetwork(scale.width // 4, scale.layers))
    nodes = 16 * scale.batch
    counts = [nodes * factor for factor in (3, 5, 4, 6)]
    x = scale.randn(nodes, scale.width // 4)
    graphs = [(x, torch.randint(0, nodes, (2, count)).to(scale.device)) for count in counts]
    run = partial(calling, model, graphs, scale.calls)
    name = "gnn-atomics" if atomics else "gnn"
    what = f"{nodes} nodes, edges {'/'.join(map(str, counts))}{'' if atomics else ', deterministic algorithms'}"
    return Workload(name=name, what=what, calls=scale.calls, run=run)


MODELS: dict[str, Callable[[Scale], Workload]] = {
    "gpt2": gpt2,
    "opt": opt,
    "t5": t5,
    "whisper": whisper,
    "vit": vit,
    "cnn": cnn,
    "lstm": lstm,
    "gnn": partial(gnn, atomics=False),
    "gnn-atomics": partial(gnn, atomics=True),
}
