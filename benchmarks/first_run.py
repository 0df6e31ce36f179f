"""What the first runs take of cells whose every step has a length that was never seen.

    python benchmarks/first_run.py [--models gpt2 llama bert conformer] [--tokens 80 1000]
                                   [--kinds greedy sampling training inference] [--without-cudnn] [--small]

`model.generate` of GPT-2 124M and a Llama of 16 layers, fp16, batch 1, whose cache has another length at each token,
greedy and sampling; the training of a BERT-base, batch 8, padded to the longest of each batch; a Conformer of 8 layers,
batch 4. Random weights; the default engine, as a person meets it. Each model, number of lengths and kind has a process
of its own: a cold plain run, warm plain runs, the first run under `%%grape` with its report, the next ones, and plain
runs beside the last. `first_over_warm` is also what a new length costs in steps as written. Every sample is written;
results (tokens, losses, sums) are compared with the last plain run's in front of Grape, one by one.

Over long caches cuDNN's attention does not repeat its own bits (`attention_repeats.py`), so that plain runs may give
other tokens than plain runs: `plain_repeats` tells whether the difference of a run under Grape says anything.
`--without-cudnn` switches it off, in plain runs and under Grape: they repeat, and pay for no plans.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _machine import machine, result_path, write
from programs import Serving, run_cell

BEGIN = """
import warnings
warnings.filterwarnings("ignore")
import torch
torch.manual_seed(0)
small, device = {small}, "{device}"
torch.backends.cuda.enable_cudnn_sdp({cudnn})
"""
LANGUAGE = """
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
if "{model}" == "gpt2":
    config = GPT2Config(**(dict(n_layer=2, n_head=2, n_embd=32) if small else dict()))
else:
    width, layers, heads = (32, 2, 2) if small else (2048, 16, 32)
    config = LlamaConfig(vocab_size=32000, max_position_embeddings=2048, hidden_size=width, num_hidden_layers=layers,
                         intermediate_size=4 * width, num_attention_heads=heads, num_key_value_heads=heads // 2)
with torch.device(device):
    model = (GPT2LMHeadModel if "{model}" == "gpt2" else LlamaForCausalLM)(config).eval()
model = model.to(torch.float32 if small else torch.float16)
model.generation_config.pad_token_id = 0
model.generation_config.eos_token_id = None
prompt = torch.randint(1, config.vocab_size, (1, 5), device=device)
"""
GENERATE = """
torch.manual_seed(1)
results = model.generate(prompt, max_new_tokens={tokens}, min_new_tokens={tokens}, do_sample={sampling})[0].tolist()
"""
BERT = """
import copy
from transformers import BertConfig, BertForMaskedLM
sizes = dict(num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64) if small else {{}}
model = BertForMaskedLM(BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes)).to(device)
start = copy.deepcopy(model.state_dict())
lengths = (24 + torch.randperm({tokens})).tolist()
batches = [torch.randint(1, 30000, (8, length), device=device) for length in lengths]
"""
TRAIN = """
model.load_state_dict(start)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
losses = []
for batch in batches:
    loss = model(input_ids=batch, labels=batch).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
results = torch.stack(losses).tolist()
"""
CONFORMER = """
from torchaudio.models import Conformer
model = Conformer(80, num_heads=4, ffn_dim=256, num_layers=2 if small else 8, depthwise_conv_kernel_size=31).eval()
model = model.to(device)
lengths = (40 + 4 * torch.randperm({tokens})).tolist()
batches = [(torch.randn(4, n, 80, device=device), torch.full((4,), n, device=device)) for n in lengths]
"""
INFER = """
sums = []
with torch.no_grad():
    for frames, sizes in batches:
        sums.append(model(frames, sizes)[0].sum())
results = torch.stack(sums).tolist()
"""
LATER = 3


@dataclass(frozen=True)
class Work:
    setup: str
    cells: dict[str, str]
    """By kind."""


LANGUAGES = Work(LANGUAGE, {"greedy": GENERATE, "sampling": GENERATE})
WORK = {
    "gpt2": LANGUAGES,
    "llama": LANGUAGES,
    "bert": Work(BERT, {"training": TRAIN}),
    "conformer": Work(CONFORMER, {"inference": INFER}),
}
KINDS = sorted({kind for work in WORK.values() for kind in work.cells})


def measure(model: str, tokens: int, kind: str, *, small: bool, device: str, cudnn: bool = True) -> dict[str, Any]:
    from IPython.core.interactiveshell import InteractiveShell

    from grape.magics import load

    shell = InteractiveShell.instance()
    work = WORK[model]
    begin = (BEGIN + work.setup).format(model=model, tokens=tokens, small=small, device=device, cudnn=cudnn)
    cell = work.cells[kind].format(tokens=tokens, sampling=kind == "sampling")

    def run(cell: str) -> float:
        took, _, failed = run_cell(shell, cell)
        assert failed is None, failed
        return took

    def timed(head: str = "") -> float:
        took = run(head + cell)
        outputs.append(shell.user_ns["results"])
        return took

    run(begin)
    outputs: list[list[float]] = []
    plain = [timed() for _ in range(4)]
    expected = outputs[-1]
    load(shell)
    serving, verdicts, grape, beside = Serving(), [], [], []
    for number in range(2 + LATER):
        serving.set(True)
        grape.append(timed("%%grape --no-widget\n"))
        verdicts.append(_verdict())
        if number >= 2:
            serving.set(False)
            beside.append(timed())
    served = [4, 5, *range(6, len(outputs), 2)]
    written = [at for at in range(len(outputs)) if at not in served]
    warm = statistics.median([*plain[1:], *beside])
    return {
        **{"model": model, "tokens": tokens, "kind": kind, "cudnn": cudnn},
        **{"plain_s": plain, "grape_s": grape, "beside_s": beside},
        "cold_s": plain[0],
        "warm_s": warm,
        "first_over_warm": grape[0] / warm,
        "later_speedup": warm / statistics.median(grape[2:]),
        "plain_repeats": all(outputs[at] == expected for at in written),
        "identical": all(outputs[at] == expected for at in served),
        "differ_from": [_first_difference(one, expected) for one in outputs],
        "verdicts": verdicts,
    }


def _first_difference(one: list[float], other: list[float]) -> int | None:
    """The first that differs; None where all are the same."""
    return next((at for at, (left, right) in enumerate(zip(one, other, strict=True)) if left != right), None)


def _verdict() -> str:
    import grape

    return grape.last.verdict if grape.last is not None else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(WORK), choices=list(WORK))
    parser.add_argument("--tokens", nargs="+", type=int, default=[80, 1000], help="new lengths")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--without-cudnn", action="store_true", help="attention of other kernels, which repeat")
    parser.add_argument("--small", action="store_true", help="tiny models on the CPU, which show that it runs")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=result_path("first_run"))
    arguments = parser.parse_args()
    device = "cpu" if arguments.small else "cuda"
    if arguments.one is not None:
        (model,), (tokens,), (kind,) = arguments.models, arguments.tokens, arguments.kinds
        cudnn = not arguments.without_cudnn
        found = measure(model, tokens, kind, small=arguments.small, device=device, cudnn=cudnn)
        arguments.one.write_text(json.dumps(found | {"machine": machine()}))
        return
    rows: list[dict[str, Any]] = []
    for tokens in arguments.tokens:
        for model in arguments.models:
            for kind in (kind for kind in arguments.kinds if kind in WORK[model].cells):
                flags = ["--small"] * arguments.small + ["--without-cudnn"] * arguments.without_cudnn
                rows.append(_apart(model, tokens, kind, flags))
                write(arguments.out, {"machine": rows[0].get("machine"), "rows": rows})


def _apart(model: str, tokens: int, kind: str, flags: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        one = Path(folder) / "one.json"
        chosen = ["--models", model, "--tokens", str(tokens), "--kinds", kind, "--one", str(one)]
        done = subprocess.run([sys.executable, __file__, *chosen, *flags], capture_output=True, text=True, check=False)
        if not one.is_file():
            return {"model": model, "tokens": tokens, "kind": kind, "failed": done.stderr[-600:]}
        found: dict[str, Any] = json.loads(one.read_text())
    print(
        *(f"{key} {found[key]}" for key in ("model", "tokens", "kind", "plain_repeats", "identical", "verdicts")),
        flush=True,
    )
    figures = ("cold_s", "warm_s", "first_over_warm", "later_speedup")
    print(*(f"{key} {found[key]:.2f}" for key in figures), flush=True)
    return found


if __name__ == "__main__":
    main()
