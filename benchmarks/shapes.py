"""What many shapes cost: device memory, executables, steps, captures and switches.

    python benchmarks/shapes.py [--parts gpt2 encoder] [--gptj] [--tokens 1024] [--lengths 119] [--sample 32]
                                [--size full|tiny] [--out FILE]

Parts: `gpt2`, GPT-2 124M in fp16, batch 5, its cache growing from 5 to 1,024 tokens; `encoder`, the encoder of
Wav2Vec2-base in fp16, batch 8, over 119 lengths in shuffled order; with `--gptj` also GPT-J 6B in fp16, 128 lengths.
Weights are random, nothing is downloaded. The encoder keeps the GPU busy, and Grape leaves such a region eager: there
the two decisions that weigh gain are switched off, so that its memory can be measured.

Each variant runs in a process of its own, so that what it leaves behind is not counted for the next. Memory is the
fall of `mem_get_info`'s free bytes, after the allocator's cache was emptied, against the same before the first graph:

grape      a pass under sessions until all its calls replay; then timed passes, every step another shape, interleaved
           with `resident`; then with executables unlimited until each shape has its own, and limited again
longest    the same for the longest shape alone
resident   graphs written by hand: an executable for each shape, one pool, inputs where they are read
own        graphs written by hand: placeholders, results, pool and executable for each shape; a sample of `--sample`
           evenly spaced shapes, multiplied

Without a CUDA device only `grape` and `longest` run, memory is Grape's own account, and times mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from _handwritten import (
    Pool,
    cache_of,
    cache_tensors,
    chained_steps,
    encoder_steps,
    prefill,
    replay_chained,
    replay_encoder,
)
from _machine import machine, result_path, write
from _measure import StepClock, Workload, main_region, numbers, observed, of_regions, same, synchronize, timed
from decode import decode, encode

from grape.model import Measured

PROMPT, BATCH = 5, 5
UNLIMITED_PASSES = 24
VARIANTS = ("longest", "resident", "own", "grape")
HOST = ("longest", "grape")
"""Variants that run without a CUDA device."""
Result = list[torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A pass over all shapes, and how each of its graphs is made by hand. `own` gives what must stay alive."""

    what: str
    shapes: int
    clock: StepClock
    run: Callable[[], Result]
    longest: Callable[[], Result]
    own: Callable[[Sequence[int]], list[Any]]
    resident: Callable[[], Callable[[], Result]]
    busy: bool = False
    """The device is busy without graphs; they are captured for the memory alone."""


# -- the jobs --------------------------------------------------------------------------------------------------------


def causal(name: str, tokens: int, size: str, device: torch.device) -> Job:
    """A decoder whose cache grows by concatenation; shape number i has `PROMPT + i` cached tokens."""
    import transformers

    tiny = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64} if size == "tiny" else {}
    kinds = {
        "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel, {}),
        "gptj": (transformers.GPTJConfig, transformers.GPTJForCausalLM, {"rotary_dim": 8} if tiny else {}),
    }
    make_config, make_model, more = kinds[name]
    config = make_config(**tiny, **more, bos_token_id=0, eos_token_id=0)
    with torch.device(device):  # six billion weights would take the host minutes
        torch.set_default_dtype(torch.float16 if device.type == "cuda" else torch.float32)
        model = make_model(config).eval().requires_grad_(False)
        torch.set_default_dtype(torch.float32)
    steps = tokens - PROMPT
    prompt = torch.randint(0, config.vocab_size, (BATCH, PROMPT)).to(device)
    clock = StepClock(steps, cuda=device.type == "cuda")

    def cache(length: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        with torch.inference_mode():
            return prefill(model, torch.zeros(BATCH, length, dtype=torch.long, device=device))

    def longest() -> Result:
        ids, tensors = cache(tokens - 1)
        with torch.inference_mode():
            for _ in range(24):
                held = cache_of(model, [tensor.clone() for tensor in tensors])
                out = model(ids, past_key_values=held, use_cache=True)
        return [out.logits]

    def own(chosen: Sequence[int]) -> list[Any]:
        kept: list[Any] = []
        ids, tensors = cache(PROMPT + max(chosen))
        for index in sorted(chosen, reverse=True):
            inputs = [torch.zeros_like(tensor[:, :, : PROMPT + index]) for tensor in tensors]
            token = ids.clone()
            body = partial(_step, model, token, inputs)
            pool = Pool()
            if not kept:
                pool.warm(body)
            kept += [token, inputs, pool, *pool.capture(body)]
        return kept

    def resident() -> Callable[[], Result]:
        with torch.inference_mode():
            first = prefill(model, prompt)[1]
        own_ids, chained = chained_steps(model, first, range(PROMPT, tokens))
        return partial(replay_chained, model, prompt, own_ids, chained, clock)

    return Job(
        what=f"{name} ({config.n_layer} x {config.n_embd}), batch {BATCH}, {PROMPT} to {tokens} tokens",
        shapes=steps,
        clock=clock,
        run=partial(decode, model, prompt, steps, None, clock),
        longest=longest,
        own=own,
        resident=resident,
    )


@torch.inference_mode()
def _step(model: Any, ids: torch.Tensor, inputs: list[torch.Tensor]) -> Result:
    out = model(ids, past_key_values=cache_of(model, inputs), use_cache=True)
    return [out.logits, *cache_tensors(out.past_key_values)]


class Encoder(torch.nn.Module):
    """Wav2Vec2's encoder without LayerDrop, for which the library's loop draws a number on the CPU at each layer, in
    evaluation too. For the tape, on which that is a draw on the device, and a graph that draws shares no executable.
    `[batch, frames, width]` to the same."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, hidden: torch.Tensor) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        hidden = self.encoder.layer_norm(hidden + self.encoder.pos_conv_embed(hidden))
        for layer in self.encoder.layers:
            hidden = layer(hidden)
        return BaseModelOutput(last_hidden_state=hidden)


def audio(lengths: int, size: str, device: torch.device) -> Job:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = Wav2Vec2Config(**(small if size == "tiny" else {}))
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    encoder = Wav2Vec2Model(config).encoder
    model = (encoder if device.type == "cuda" else Encoder(encoder)).to(device, dtype).eval().requires_grad_(False)
    batch = 2 if size == "tiny" else 8
    frames = [65 + round(index * 134 / max(1, lengths - 1)) for index in range(lengths)]
    order = torch.randperm(lengths, generator=torch.Generator().manual_seed(1)).tolist()
    clips = [torch.randn(batch, frames[i], config.hidden_size).to(device, dtype) for i in order]
    scale = torch.tensor(0.5, dtype=dtype).to(device)
    clock = StepClock(lengths, cuda=device.type == "cuda")
    most = max(clips, key=len if batch == 1 else torch.Tensor.numel)

    def own(chosen: Sequence[int]) -> list[Any]:
        kept: list[Any] = []
        for index in chosen:
            clip = clips[order.index(index)].clone()
            body = partial(_encoded, model, clip)
            pool = Pool()
            if not kept:
                pool.warm(body)
            kept += [clip, pool, *pool.capture(body)]
        return kept

    def resident() -> Callable[[], Result]:
        steps = encoder_steps(model, [clip.shape for clip in clips], dtype, device)
        return partial(replay_encoder, steps, clips, scale, clock, copying=False)

    return Job(
        what=f"Wav2Vec2 encoder ({config.num_hidden_layers} x {config.hidden_size}), batch {batch}, {lengths} lengths",
        shapes=lengths,
        clock=clock,
        run=partial(encode, model, clips, scale, clock),
        longest=partial(encode, model, [most] * 24, scale, StepClock(24, cuda=device.type == "cuda")),
        own=own,
        resident=resident,
        busy=True,
    )


@torch.inference_mode()
def _encoded(model: Any, clip: torch.Tensor) -> torch.Tensor:
    hidden: torch.Tensor = model(clip).last_hidden_state
    return hidden


# -- measuring -------------------------------------------------------------------------------------------------------


def settle() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def free_bytes() -> int | None:
    settle()
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None


def resident_bytes() -> int:
    """Host memory of this process, without what the C library keeps for later."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _Heap(ctypes.Structure):
    """`struct mallinfo2` of the C library."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def heap_bytes() -> int | None:
    """What is in use of the C library's heap: the rest of what a process grew is fragments, or mapped by others."""
    gc.collect()
    try:
        function: Any = ctypes.CDLL("libc.so.6").mallinfo2
    except (OSError, AttributeError):
        return None
    function.restype = _Heap
    found = function()
    return int(found.uordblks) + int(found.hblkhd)


def fallen(before: int | None) -> int | None:
    now = free_bytes()
    return before - now if before is not None and now is not None else None


@contextlib.contextmanager
def clocked(**functions: tuple[Any, str]) -> Iterator[dict[str, list[float]]]:
    """Milliseconds of each call of methods, by a name of one's own: `(class, attribute)`."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    patches = []
    for name, (owner, attribute) in functions.items():
        original = getattr(owner, attribute)

        def timed_call(*args: Any, _original: Any = original, _name: str = name, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return _original(*args, **kwargs)
            finally:
                taken[_name].append((time.perf_counter() - began) * 1e3)

        patches.append(patch.object(owner, attribute, timed_call))
    for one in patches:
        one.start()
    try:
        yield taken
    finally:
        for one in patches:
            one.stop()


@contextlib.contextmanager
def in_any_case() -> Iterator[None]:
    """Capture what was seen often enough, whatever it saves, and keep it."""
    from grape.runtime.accounts import policy
    from grape.runtime.regions.replays import Replays

    decided = policy.decide

    def capture(estimate: policy.Estimate) -> Any:
        return replace(decided(estimate), action="capture")

    with patch.object(policy, "decide", capture), patch.object(Replays, "_weigh", lambda *args, **kwargs: None):
        yield


def learn(work: Workload, most: int, expected: Sequence[torch.Tensor] | None) -> tuple[list[dict[str, Any]], bool]:
    """Sessions until every call of a pass replays, at most `most`; what each did, and whether the bits were right."""
    passes: list[dict[str, Any]] = []
    right = True
    for _ in range(most):
        result, ms, report = observed(work)
        right = right and (expected is None or same(expected, result))
        del result  # else the next pass finds the slots of the cache occupied, and needs graphs with other addresses
        main = main_region(report) or {"calls": 0, "replays": 0, "reason": None}
        passes.append({"ms": ms * work.calls, **{key: main[key] for key in ("calls", "replays", "reason")}})
        if main["replays"] >= work.calls:
            break
    return passes, right


def timed_passes(job: Job, variants: dict[str, Workload], rounds: int, expected: Sequence[torch.Tensor]) -> Any:
    """Whole passes in turn: milliseconds of each, of its steps, and whether all gave the bits of eager."""
    found: dict[str, Any] = {name: {"pass_ms": [], "steps_ms": [], "identical": True} for name in variants}
    for turn in range(rounds + 1):
        for name, work in variants.items():
            result, ms = timed(work)
            if turn:  # the first warms up
                found[name]["pass_ms"].append(ms * work.calls)
                found[name]["steps_ms"] += job.clock.steps_ms()
                found[name]["identical"] = found[name]["identical"] and same(expected, result)
            del result  # who keeps it while the next pass runs needs graphs with other addresses
    for row in found.values():
        steps = Measured.of(row.pop("steps_ms"))
        row["pass_ms"] = numbers(row["pass_ms"])
        row["step_ms"] = steps.to_dict() if steps else None
    return found


def without_working_set(measure: Callable[[], int]) -> int | None:
    """What `measure` gives while nothing is kept on the host that a replay can make again."""
    from grape.sessions import engine

    store = engine().context.executables
    if store is None:
        return None
    budget, store.graph_budget_bytes = store.graph_budget_bytes, 0
    store.apply_limits()
    try:
        return measure()
    finally:
        store.graph_budget_bytes = budget


def of_grape(
    job: Job, rounds: int, sessions: int, save: Callable[[dict[str, Any]], None] = lambda found: None
) -> dict[str, Any]:
    """`save` gets what is known after each step: a run over a thousand shapes may be cut short."""
    from grape.runtime import account
    from grape.runtime.capture.attempt import _Attempt
    from grape.runtime.capture.proof.verification import Verification
    from grape.runtime.capture.running.in_step import InStep
    from grape.runtime.compression import ExecutableStore
    from grape.sessions import engine

    work = Workload(name="grape", what=job.what, calls=job.shapes, run=job.run)
    expected = [tensor.clone() for tensor in timed(work)[0]]
    eager = timed_passes(job, {"eager": work}, 1, expected)["eager"]
    before, host, heap = free_bytes(), resident_bytes(), heap_bytes()
    phases = {"capture": (InStep, "capture"), "verify": (Verification, "verify"), "whole": (_Attempt, "run")}
    if engine().context.executables is not None:
        phases["admit"] = (_Attempt, "admit")
    with clocked(**phases) as capturing:
        passes, right = learn(work, sessions, expected)
    grown = fallen(before)
    host_grown, heap_now = resident_bytes() - host, heap_bytes()
    store, held = engine().context.executables, account(engine().context)
    beside = without_working_set(lambda: resident_bytes() - host)
    found: dict[str, Any] = {
        "sessions": passes,
        "identical": right,
        "grown_bytes": grown,
        "host_grown_bytes": host_grown,
        "host_grown_without_working_set_bytes": beside,
        "heap_grown_bytes": heap_now - heap if heap_now is not None and heap is not None else None,
        "account": held.to_dict() if held else None,
        "capture_ms": {name: numbers(ms) for name, ms in capturing.items()},
        "eager": eager,
    }
    save(found)
    variants = {"grape": work}
    if torch.cuda.is_available():
        variants["resident"] = Workload(name="resident", what="", calls=job.shapes, run=job.resident())
    if store is None:
        return {**found, "timed": timed_passes(job, variants, rounds, expected)}
    executables = {type(one.executable) for one in store._resident.all.values()}
    updates = {f"update {cls.__name__} {name}": (cls, name) for cls in executables for name in ("update_from",)}
    updates |= {f"update {cls.__name__} nodes": (cls, "update_prepared") for cls in executables}
    with clocked(switch=(ExecutableStore, "_bring"), **updates) as switching:
        timed(work)
        synchronize()
    found["switch_ms"] = {name: numbers(ms) for name, ms in switching.items()}
    found["timed"] = timed_passes(job, variants, rounds, expected)
    save(found)
    limits = store.limits
    store.limits = replace(limits, executables=1 << 30)
    with contextlib.ExitStack() as waited:  # a shape gets its own executable once it has paid for it in switches
        for cls in executables:  # which it does not where the device works all the while, as here
            waited.enter_context(patch.object(cls, "waits", lambda self: False))
        for _ in range(UNLIMITED_PASSES):
            timed(work)
            if (account_now := store.account()).executables >= account_now.shapes:
                break
    found["unlimited"] = {
        "executables": store.account().executables,
        **timed_passes(job, {"grape": work}, rounds, expected)["grape"],
    }
    found["unlimited"]["grown_bytes"] = fallen(before)
    save(found)
    store.limits = limits
    store.apply_limits()
    timed(work)
    found["limited_again"] = timed_passes(job, {"grape": work}, rounds, expected)["grape"]
    return found


def of_longest(job: Job, sessions: int) -> dict[str, Any]:
    from grape.runtime import account
    from grape.sessions import engine

    work = Workload(name="longest", what="", calls=24, run=job.longest)
    timed(work)
    before, host = free_bytes(), resident_bytes()
    passes, _ = learn(work, min(2, sessions), None)
    held = account(engine().context)
    return {
        "sessions": passes,
        "grown_bytes": fallen(before),
        "host_grown_bytes": resident_bytes() - host,
        "account": held.to_dict() if held else None,
    }


def of_resident(job: Job) -> dict[str, Any]:
    job.run()
    before = free_bytes()
    replay = job.resident()
    made = fallen(before)
    replay()
    return {"grown_bytes": made, "executables": job.shapes}


def of_own(job: Job, sample: int) -> dict[str, Any]:
    job.run()
    before = free_bytes()
    count = min(sample, job.shapes)
    chosen = sorted({round(index * (job.shapes - 1) / max(1, count - 1)) for index in range(count)})
    kept = job.own(chosen)
    grown = fallen(before)
    assert kept
    whole = None if grown is None else round(grown / len(chosen) * job.shapes)
    return {"sample": len(chosen), "grown_bytes": grown, "extrapolated_bytes": whole}


def build(part: str, arguments: argparse.Namespace) -> Job:
    device = torch.device(arguments.device)
    torch.manual_seed(0)
    if part == "encoder":
        return audio(arguments.lengths, arguments.size, device)
    tokens = min(arguments.tokens, PROMPT + 128) if part == "gptj" else arguments.tokens
    return causal(part, tokens, arguments.size, device)


def one(part: str, variant: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """A variant, measured in this process."""
    import transformers

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    job = build(part, arguments)
    about = {"what": job.what, "shapes": job.shapes}
    measured = {
        "grape": lambda: of_grape(
            job, arguments.rounds, arguments.sessions, lambda found: write(arguments.out, {**about, **found})
        ),
        "longest": lambda: of_longest(job, arguments.sessions),
        "resident": lambda: of_resident(job),
        "own": lambda: of_own(job, arguments.sample),
    }[variant]
    with in_any_case() if job.busy else contextlib.nullcontext():
        return {**about, **measured()}


def in_its_own_process(part: str, variant: str, found: dict[str, Any]) -> None:
    """Put into `found` what the process found, also where it ends early."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, __file__, *sys.argv[1:], "--only", part, variant, "--out", str(out)]
        try:
            subprocess.run(command, check=True)
        finally:
            if out.exists():
                found[variant] = json.loads(out.read_text())


def ratios(part: dict[str, Any]) -> dict[str, float]:
    """What the issue asks for: memory against both baselines and the longest alone, steps against all resident."""
    grown = {name: row.get("extrapolated_bytes") or row.get("grown_bytes") for name, row in part.items()}
    found: dict[str, float] = {}
    if grown.get("grape"):
        found |= {f"memory: {name} / grape": grown[name] / grown["grape"] for name in ("own", "resident")}
        found["memory: grape / longest"] = grown["grape"] / max(1, grown["longest"])
    steps = {name: row["pass_ms"]["median"] for name, row in part["grape"]["timed"].items()}
    if "resident" in steps:
        found["step: grape / resident"] = steps["grape"] / steps["resident"]
    if "unlimited" in part["grape"]:
        found["step: grape / grape, unlimited"] = steps["grape"] / part["grape"]["unlimited"]["pass_ms"]["median"]
    fixed = part["longest"].get("host_grown_bytes", 0)  # what libraries load for one shape
    host, beside = (part["grape"].get(f"host_grown{name}_bytes") for name in ("", "_without_working_set"))
    found["host bytes beyond those of one shape"] = host - fixed
    if beside is not None:
        found["host bytes per shape, without the working set"] = (beside - fixed) / part["grape"]["shapes"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", choices=("gpt2", "encoder"), default=("gpt2", "encoder"))
    parser.add_argument("--gptj", action="store_true", help="GPT-J 6B too: 12 GB of weights")
    parser.add_argument("--tokens", type=int, default=1024, help="length of the cache at the end, from 5")
    parser.add_argument("--lengths", type=int, default=119, help="lengths of the encoder's input")
    parser.add_argument("--sample", type=int, default=32, help="shapes with everything of their own")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--rounds", type=int, default=3, help="timed passes of each variant")
    parser.add_argument("--sessions", type=int, default=8, help="most passes under Grape before the timed ones")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs=2, metavar=("PART", "VARIANT"), help="measure this here, and nothing else")
    parser.add_argument("--out", type=Path, default=result_path("shapes"))
    arguments = parser.parse_args()
    of_regions()
    if not PROMPT + 1 < arguments.tokens <= 1024:
        parser.error(f"--tokens lies between {PROMPT + 2} and 1024")
    if arguments.only:
        write(arguments.out, one(*arguments.only, arguments))
        return 0
    results: dict[str, Any] = {"machine": machine()}
    for part in (*arguments.parts, *(["gptj"] if arguments.gptj else [])):
        variants = VARIANTS if torch.device(arguments.device).type == "cuda" else HOST
        results[part] = {}
        for variant in variants:
            try:
                in_its_own_process(part, variant, results[part])
            finally:
                write(arguments.out, results)
        results[part]["ratios"] = ratios(results[part])
        print(part, json.dumps(results[part]["ratios"], indent=1), flush=True)
        write(arguments.out, results)
    parts = [row for name, row in results.items() if name != "machine"]
    return int(not all(row["grape"]["identical"] for row in parts))


if __name__ == "__main__":
    raise SystemExit(main())
