"""Transformers of GraCE's evaluation (OSDI 2026) and like ones, with random weights. Dropout is 0 in training."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from ..job import Group, Job, Size, inference, training

__all__ = ["LANGUAGE"]

LANGUAGE = Group(
    "language",
    "Language and speech models (GraCE, OSDI 2026)",
    said="GraCE reports 29% over torch.compile with CUDA graphs in the geometric mean of 25 models, on none slower.",
)

SMALL = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    **{"vocab_size": 99, "max_position_embeddings": 64},
}
STEPS = 4
"""Batches that take turns."""


def batches(size: Size, vocabulary: int, batch: int, length: int) -> list[tuple[torch.Tensor]]:
    return [(size.tokens(vocabulary, batch, length),) for _ in range(size.of(STEPS, 2))]


def predicting(size: Size, model: Any, batch: int, length: int) -> Job:
    """Training against the tokens themselves."""
    inputs = batches(size, model.config.vocab_size, batch, length)
    return training(size, model, inputs, lambda ids: model(input_ids=ids, labels=ids).loss)


def answering(size: Size, model: Any, batch: int, length: int) -> Job:
    inputs = batches(size, model.config.vocab_size, batch, length)

    def answer(ids: torch.Tensor) -> list[torch.Tensor]:
        out = model(input_ids=ids)
        return [out.start_logits, out.end_logits]

    return inference(size, model, inputs, answer)


@LANGUAGE.row("XLNet-large, 1 x 512, inference", "transformers")
def xlnet(size: Size) -> Job:
    from transformers import XLNetConfig, XLNetModel

    tiny = {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64, "vocab_size": 99}
    model = size.build(lambda: XLNetModel(XLNetConfig(**size.of({}, tiny))))
    inputs = batches(size, model.config.vocab_size, 1, size.of(512, 16))
    return inference(size, model, inputs, lambda ids: model(input_ids=ids).last_hidden_state)


@LANGUAGE.row("MT5-small, 16 x 128, training", "transformers")
def mt5_training(size: Size) -> Job:
    from transformers import MT5Config, MT5ForConditionalGeneration

    tiny = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 99}
    config = MT5Config(**size.of({}, tiny), decoder_start_token_id=0, dropout_rate=0.0)
    model = size.build(lambda: MT5ForConditionalGeneration(config), torch.float32)
    return predicting(size, model, size.of(16, 2), size.of(128, 8))


@LANGUAGE.row("MobileBERT, question answering, 128 x 128", "transformers")
def mobilebert(size: Size) -> Job:
    from transformers import MobileBertConfig, MobileBertForQuestionAnswering

    tiny = {**SMALL, "embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32, "num_hidden_layers": 2}
    model = size.build(lambda: MobileBertForQuestionAnswering(MobileBertConfig(**size.of({}, tiny))))
    return answering(size, model, size.of(128, 2), size.of(128, 16))


@LANGUAGE.row("DeBERTa-v2-xlarge, question answering, 1 x 512", "transformers")
def deberta_v2(size: Size) -> Job:
    from transformers import DebertaV2Config, DebertaV2ForQuestionAnswering

    relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    config = DebertaV2Config(**size.of({}, SMALL), **relative)
    return answering(size, size.build(lambda: DebertaV2ForQuestionAnswering(config)), 1, size.of(512, 16))


@LANGUAGE.row("DeBERTa-base, masked language model, 8 x 512, training", "transformers")
def deberta_training(size: Size) -> Job:
    from transformers import DebertaConfig, DebertaForMaskedLM

    relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = DebertaConfig(**size.of({}, SMALL), **relative, **off)
    model = size.build(lambda: DebertaForMaskedLM(config), torch.float32)
    inputs = batches(size, model.config.vocab_size, size.of(8, 2), size.of(512, 16))
    # Its attention fills in the least float32, which bfloat16 does not hold.
    return training(size, model, inputs, lambda ids: model(input_ids=ids, labels=ids).loss, autocast=False)


@LANGUAGE.row("BlenderbotSmall, 64 x 128, training", "transformers")
def blenderbot_training(size: Size) -> Job:
    from transformers import BlenderbotSmallConfig, BlenderbotSmallForCausalLM

    tiny = {
        **{"d_model": 32, "decoder_layers": 2, "encoder_layers": 2, "vocab_size": 99, "max_position_embeddings": 64},
        **{"decoder_attention_heads": 2, "encoder_attention_heads": 2, "decoder_ffn_dim": 64, "encoder_ffn_dim": 64},
    }
    off = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    config = BlenderbotSmallConfig(**size.of({}, tiny), **off)
    model = size.build(lambda: BlenderbotSmallForCausalLM(config), torch.float32)
    return predicting(size, model, size.of(64, 2), size.of(128, 8))


@LANGUAGE.row("GPT-2 of 6 layers, 16 x 512, training", "transformers")
def gpt2_training(size: Size) -> Job:
    from transformers import GPT2Config, GPT2LMHeadModel

    tiny = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 99}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    model = size.build(lambda: GPT2LMHeadModel(GPT2Config(**size.of({"n_layer": 6}, tiny), **off)), torch.float32)
    return predicting(size, model, size.of(16, 2), size.of(512, 8))


@LANGUAGE.row("BERT-base, masked language model, 16 x 512, training", "transformers")
def bert_training(size: Size) -> Job:
    from transformers import BertConfig, BertForMaskedLM

    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = size.build(lambda: BertForMaskedLM(BertConfig(**size.of({}, SMALL), **off)), torch.float32)
    return predicting(size, model, size.of(16, 2), size.of(512, 16))


@LANGUAGE.row("BERT-base, classification, 8 x 64, training", "transformers")
def bert_small_batches(size: Size) -> Job:
    """Short sequences in small batches, as people fine-tune: the host is the slower side."""
    from transformers import BertConfig, BertForSequenceClassification

    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = size.build(lambda: BertForSequenceClassification(BertConfig(**size.of({}, SMALL), **off)), torch.float32)
    vocabulary = model.config.vocab_size
    shape = (size.of(8, 2), size.of(64, 8))
    inputs = [(size.tokens(vocabulary, *shape), torch.randint(0, 2, shape[:1]).to(size.device)) for _ in range(2)]
    return training(size, model, inputs, lambda ids, kind: F.cross_entropy(model(input_ids=ids).logits.float(), kind))


@LANGUAGE.row("CLIP ViT-B/32, batch 1, inference", "transformers")
def clip(size: Size) -> Job:
    from transformers import CLIPConfig, CLIPModel

    tiny = {
        "text_config": {**SMALL, "eos_token_id": 2, "projection_dim": 16},
        "vision_config": {**SMALL, "image_size": 32, "patch_size": 16, "projection_dim": 16},
        "projection_dim": 16,
    }
    model = size.build(lambda: CLIPModel(CLIPConfig(**size.of({}, tiny))))
    side, length = size.of((224, 16), (32, 8))
    vocabulary = model.config.text_config.vocab_size
    inputs = [(size.tokens(vocabulary, 1, length), size.randn(1, 3, side, side)) for _ in range(2)]

    def compare(ids: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, pixel_values=pixels).logits_per_image

    return inference(size, model, inputs, compare)


@LANGUAGE.row("Speech2Text, batch 1, generates 60 tokens", "transformers")
def speech2text(size: Size) -> Job:
    from transformers import Speech2TextConfig, Speech2TextForConditionalGeneration

    tiny = {
        **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 99, "conv_channels": 32},
        **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
    }
    model = size.build(lambda: Speech2TextForConditionalGeneration(Speech2TextConfig(**size.of({}, tiny))))
    tokens = size.of(60, 6)
    inputs = [(size.randn(1, size.of(400, 40), 80),) for _ in range(2)]

    def generate(features: torch.Tensor) -> torch.Tensor:
        return model.generate(
            features, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, num_beams=1, pad_token_id=1
        )

    job = inference(size, model, inputs, generate)
    job.by_hand = "generate of the library calls the decoder and reads on the host"
    return job
