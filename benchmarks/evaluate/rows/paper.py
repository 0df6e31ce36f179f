"""The workloads of Grape, MICRO 2023: decoding with a growing cache, and speech of many lengths."""

from __future__ import annotations

from typing import Any

import torch

from ..by_hand import pool_for
from ..job import Group, Job, Size, inference, training

__all__ = ["PAPER"]

PAPER = Group(
    "paper",
    "The paper's workloads (Grape, MICRO 2023)",
    said="The paper reports 1.41x over the best executor that uses graphs, 2.97x over eager on GPT-2, 1.78x on GPT-J, "
    "1.82x on Wav2Vec2, and 36.43 times less memory, on other GPUs.",
)

DECODE = """\
with torch.no_grad():
    out = model(prompt, use_cache=True)
    cache, ids = out.past_key_values, out.logits[:, -1:].argmax(-1)
    for number in range(steps):
        out = model(ids, past_key_values=cache, use_cache=True)
        ids = out.logits[:, -1:].argmax(-1)
results = [ids, out.logits]
"""
BEAMS = DECODE.replace("argmax(-1)\nresults", "argmax(-1)\n        cache.reorder_cache(beams[number])\nresults")


def decoding(size: Size, model: Any, tokens: int, batch: int, *, reorder: bool = False) -> Job:
    """From 5 tokens to `tokens`, one at a time; the cache grows by concatenation."""
    import _handwritten

    model.eval().requires_grad_(False)
    prompt = size.tokens(model.config.vocab_size, batch, 5)
    steps = tokens - 5
    beams = torch.randint(0, batch, (steps, batch), device=size.device) if reorder else None
    names = {"torch": torch, "model": model, "prompt": prompt, "steps": steps, "beams": beams}

    def by_hand() -> tuple[dict[str, Any], list[str]]:
        """A graph for each length; placeholders of the longest are shared by all of them."""
        made: list[Any] = []

        class Unclocked:
            def start(self) -> None: ...

            def mark(self) -> None: ...

        def replayed() -> Any:
            if not made:
                _handwritten.Pool = lambda: pool_for(size)
                with torch.inference_mode():
                    first = _handwritten.prefill(model, prompt)[1]
                made.extend(_handwritten.placeholder_steps(model, first, range(5, tokens)))
            ids, graphs = made
            clock: Any = Unclocked()
            return _handwritten.replay_copying(model, prompt, ids, graphs, beams, clock)[:2]

        return {"replayed": replayed}, ["results = replayed()\n"]

    return Job(
        names=names,
        cells=[BEAMS if reorder else DECODE],
        steps=steps,
        modules=[model],
        fixed=True,
        by_hand=by_hand,
    )


def gpt2(size: Size) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    tiny = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64}
    return size.build(lambda: GPT2LMHeadModel(GPT2Config(**size.of({}, tiny), bos_token_id=0, eos_token_id=0)))


@PAPER.row(
    "GPT-2 124M, batch 5, decodes from 5 to 261 tokens", "transformers", ablations=("no_alias", "no_compression")
)
def gpt2_decode(size: Size) -> Job:
    return decoding(size, gpt2(size), size.of(261, 11), 5)


@PAPER.row("the same, beams reordered at each step", "transformers", ablations=("no_alias",))
def gpt2_beams(size: Size) -> Job:
    return decoding(size, gpt2(size), size.of(261, 11), 5, reorder=True)


@PAPER.row("GPT-2 124M, batch 5, decodes from 5 to 1,024 tokens", "transformers", long=True)
def gpt2_decode_1024(size: Size) -> Job:
    return decoding(size, gpt2(size), size.of(1024, 13), 5)


@PAPER.row("the same, beams reordered at each step", "transformers", long=True)
def gpt2_beams_1024(size: Size) -> Job:
    return decoding(size, gpt2(size), size.of(1024, 13), 5, reorder=True)


@PAPER.row("GPT-J 6B, batch 1, decodes from 5 to 69 tokens", "transformers")
def gptj_decode(size: Size) -> Job:
    from transformers import GPTJConfig, GPTJForCausalLM

    tiny = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64, "rotary_dim": 8}
    model = size.build(lambda: GPTJForCausalLM(GPTJConfig(**size.of({}, tiny), bos_token_id=0, eos_token_id=0)))
    return decoding(size, model, size.of(69, 9), 1)


def wav2vec2(size: Size, dtype: torch.dtype) -> Any:
    """LayerDrop and masks draw numbers on the host; they are off."""
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    tiny = {
        **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
        **{"conv_dim": (16, 16, 16), "conv_stride": (5, 4, 4), "conv_kernel": (10, 4, 4)},
        **{"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2},
    }
    off = {"layerdrop": 0.0, "apply_spec_augment": False, "mask_time_prob": 0.0}
    return size.build(lambda: Wav2Vec2Model(Wav2Vec2Config(**size.of({}, tiny), **off)), dtype)


def clips(size: Size, count: int, batch: int, dtype: torch.dtype) -> list[tuple[torch.Tensor]]:
    """Of 1.3 to 4 seconds at 16 kHz, in an order that nobody sorted."""
    longest = size.of(64000, 3200)
    lengths = [longest // 3 + index * (longest - longest // 3) // max(1, count - 1) for index in range(count)]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1)).tolist()
    return [(size.randn(batch, lengths[index], dtype=dtype),) for index in order]


@PAPER.row("Wav2Vec2-base, batch 8, inference over 24 lengths", "transformers", ablations=("no_compression",))
def wav2vec2_inference(size: Size) -> Job:
    model = wav2vec2(size, size.half)
    inputs = clips(size, size.of(24, 3), size.of(8, 2), size.half)
    return inference(size, model, inputs, lambda clip: model(clip).last_hidden_state.mean(1))


@PAPER.row("Wav2Vec2-base, batch 8, training over 12 lengths", "transformers")
def wav2vec2_training(size: Size) -> Job:
    model = wav2vec2(size, torch.float32)
    inputs = clips(size, size.of(12, 2), size.of(8, 2), torch.float32)
    return training(size, model, inputs, lambda clip: model(clip).last_hidden_state.float().square().mean())
