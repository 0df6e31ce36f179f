"""Loops with state that grows, on a GPU: the same bits, and what lies between deferred."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from grape.streams import Settings, Stream, open_stream
from tests.property.stream_programs import flat
from tests.property.test_stream_growth import agree

pytestmark = pytest.mark.filterwarnings("ignore")


def test_random_loops_agree_bit_by_bit() -> None:
    found = [agree(seed, "cuda") for seed in range(12)]
    assert sum(one.matched > 0 for one in found) > 6
    assert sum("sizes that grow" in one.written for one in found) > 3


@pytest.mark.parametrize("how", [{"do_sample": False}, {"do_sample": True}, {"num_beams": 3, "do_sample": False}])
def test_a_library_decodes_with_its_growing_cache(how: dict[str, object]) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"n_layer": 6, "n_head": 4, "n_embd": 64, "vocab_size": 500, "bos_token_id": 0, "eos_token_id": None}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).half().cuda().eval()
    model.generation_config.pad_token_id = 0
    ids = torch.randint(1, 500, (2, 4), device="cuda")

    def generate() -> list[Tensor]:
        torch.manual_seed(1)
        return [model.generate(ids, max_new_tokens=90, min_new_tokens=90, **how) for _ in range(2)]

    plain = flat(generate())
    assert flat(generate()) == plain, "the plain run repeats itself"
    stream = open_stream(Settings(device="cuda", price=0, doubt=0))
    assert isinstance(stream, Stream), stream
    with stream:
        assert flat(generate()) == plain
    evidence = stream.evidence()
    assert evidence.written["sizes that grow"] > 500
    assert evidence.matched > 0.4 * evidence.seen
    assert evidence.launched > 500
