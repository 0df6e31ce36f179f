"""The paper's decode loop, and an encoder over 119 lengths: eager, Grape, and CUDA graphs written by hand.

    python benchmarks/decode.py [--parts plain reorder encoder] [--tokens 1024] [--size full|tiny] [--out FILE]

Parts, each in this one process:

plain    GPT-2 124M, fp16, batch 5, cache growing from 5 to 1,024 tokens by `model(ids, past_key_values=cache)`, argmax
reorder  the same with `cache.reorder_cache(beam_idx)` at each step
encoder  the encoder of Wav2Vec2-base, fp16, batch 8, over 119 lengths between 65 and 199

Variants: `eager`; `placeholders`, graphs written by hand with shared placeholders and one copy per input tensor before
each replay; `in_place`, the same graphs with every input already where it is read; `grape`, after the sessions in which
it captured. Capturing is counted separately. Weights are random, nothing is downloaded. Without a CUDA device only
`eager` and `grape` run, and their times mean nothing.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from _handwritten import (
    cache_tensors,
    chained_steps,
    encoder_steps,
    placeholder_steps,
    prefill,
    replay_chained,
    replay_copying,
    replay_encoder,
    replay_selecting,
)
from _machine import machine, result_path, write
from _measure import StepClock, Workload, main_region, numbers, observed, of_regions, same, timed

import grape
from grape.model import Measured

PROMPT = 5
BATCH = 5
Result = list[torch.Tensor]
Observed = tuple[Sequence[torch.Tensor], float, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A loop as a person writes it, and how to build what it is compared with: name to (seconds, loop)."""

    what: str
    clock: StepClock
    steps: int
    eager: Callable[[], Result]
    baselines: Callable[[], dict[str, tuple[float, Callable[[], Result]]]]
    observe: Callable[[Workload], Observed] = observed
    """One run in a session: whether the loop's function is a candidate, or what it calls only."""


# -- GPT-2 ---------------------------------------------------------------------------------------------------------


def decode(model: Any, prompt: torch.Tensor, steps: int, beams: torch.Tensor | None, clock: StepClock) -> Result:
    """Greedy, `out = model(...)` once a token; the rows of `beams` reorder the cache. Last ids, logits, cache."""
    with torch.inference_mode():
        out = model(prompt, use_cache=True)
        cache, ids = out.past_key_values, out.logits[:, -1:].argmax(-1)
        clock.start()
        for beam in [None] * steps if beams is None else beams:
            out = model(ids, past_key_values=cache, use_cache=True)
            ids = out.logits[:, -1:].argmax(-1)
            if beam is not None:
                cache.reorder_cache(beam)
            clock.mark()
        return [ids, out.logits, *cache_tensors(cache)]


def decoder(tokens: int, size: str, device: torch.device, *, reorder: bool) -> Part:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64} if size == "tiny" else {}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).to(device).eval().requires_grad_(False)
    model = model.half() if device.type == "cuda" else model
    prompt = torch.randint(0, config.vocab_size, (BATCH, PROMPT)).to(device)
    steps = tokens - PROMPT
    beams = torch.randint(0, BATCH, (steps, BATCH)).to(device) if reorder else None
    clock = StepClock(steps, cuda=device.type == "cuda")
    lengths = range(PROMPT, tokens)

    def baselines() -> dict[str, tuple[float, Callable[[], Result]]]:
        with torch.inference_mode():
            first = prefill(model, prompt)[1]
        began = time.perf_counter()
        ids, made = placeholder_steps(model, first, lengths)
        took = time.perf_counter() - began
        found = {"placeholders": (took, partial(replay_copying, model, prompt, ids, made, beams, clock))}
        if beams is not None:
            found["in_place"] = (0.0, partial(replay_selecting, model, prompt, ids, made, beams, clock))
            return found
        began = time.perf_counter()
        own, chained = chained_steps(model, first, lengths)
        took = time.perf_counter() - began
        return {**found, "in_place": (took, partial(replay_chained, model, prompt, own, chained, clock))}

    what = f"GPT-2 ({config.n_layer} x {config.n_embd}), batch {BATCH}, {PROMPT} to {tokens} tokens"
    return Part(
        what=what + (", beams reordered" if reorder else ""),
        clock=clock,
        steps=steps,
        eager=partial(decode, model, prompt, steps, beams, clock),
        baselines=baselines,
        observe=observed_here,
    )


# -- Wav2Vec2 ------------------------------------------------------------------------------------------------------


def encode(model: Any, clips: Sequence[torch.Tensor], scale: torch.Tensor, clock: StepClock) -> Result:
    """Each clip is scaled, encoded and averaged over time."""
    means = []
    with torch.inference_mode():
        clock.start()
        for clip in clips:
            hidden = clip * scale
            means.append(model(hidden).last_hidden_state.mean(1))
            clock.mark()
    return means


def encoder(lengths: int, size: str, device: torch.device) -> Part:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = Wav2Vec2Config(**(small if size == "tiny" else {}))
    model = Wav2Vec2Model(config).encoder.to(device).eval().requires_grad_(False)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    model = model.to(dtype)
    batch = 2 if size == "tiny" else 8
    frames = [65 + round(index * 134 / max(1, lengths - 1)) for index in range(lengths)]
    order = torch.randperm(lengths, generator=torch.Generator().manual_seed(1)).tolist()
    clips = [torch.randn(batch, frames[i], config.hidden_size).to(device, dtype) for i in order]
    scale = torch.tensor(0.5, dtype=dtype).to(device)
    clock = StepClock(lengths, cuda=device.type == "cuda")

    def baselines() -> dict[str, tuple[float, Callable[[], Result]]]:
        began = time.perf_counter()
        steps = encoder_steps(model, [clip.shape for clip in clips], dtype, device)
        took = time.perf_counter() - began
        replay = partial(replay_encoder, steps, clips, scale, clock)
        return {
            "placeholders": (took, partial(replay, copying=True)),
            "in_place": (0.0, partial(replay, copying=False)),
        }

    return Part(
        what=f"Wav2Vec2 encoder ({config.num_hidden_layers} x {config.hidden_size}), batch {batch}, {lengths} lengths",
        clock=clock,
        steps=lengths,
        eager=partial(encode, model, clips, scale, clock),
        baselines=baselines,
    )


# -- measuring -----------------------------------------------------------------------------------------------------


class Samples:
    """Whole passes and steps of one variant, and whether each pass gave the bits that eager gave."""

    def __init__(self) -> None:
        self.pass_ms: list[float] = []
        self.steps_ms: list[list[float]] = []
        self.identical = True

    def take(self, part: Part, workload: Workload, expected: Result | None) -> Result:
        result, ms = timed(workload)
        self.pass_ms.append(ms * workload.calls)
        self.steps_ms.append(part.clock.steps_ms())
        self.identical = self.identical and (expected is None or same(expected, result))
        return list(result)

    def to_dict(self) -> dict[str, Any]:
        every = [ms for steps in self.steps_ms for ms in steps]
        step = Measured.of(every)
        return {
            "pass_ms": numbers(self.pass_ms),
            "step_ms": step.to_dict() if step else None,
            "last_pass_steps_ms": [round(ms, 4) for ms in self.steps_ms[-1]],
            "identical": self.identical,
        }


def observed_here(workload: Workload) -> Observed:
    """As `observed`, with the functions of this file as candidates, as those of a notebook are."""
    gc.collect()
    with grape.session() as current:
        result, ms = timed(workload)
    assert current.report is not None
    return list(result), ms, current.report.to_dict()


def learn(part: Part, workload: Workload, expected: Result, most: int) -> tuple[list[dict[str, Any]], bool]:
    """Run under sessions until a whole pass replays, at most `most` times; what each took and captured."""
    passes: list[dict[str, Any]] = []
    identical = True
    for _ in range(most):
        result, ms, report = part.observe(workload)
        identical = identical and same(expected, result)
        del result  # else the next pass finds the slots of the cache occupied, and needs graphs with other addresses
        main = main_region(report)
        done = {
            "ms": ms * workload.calls,
            "calls": main["calls"] if main else 0,
            "replays": main["replays"] if main else 0,
            "codes": sorted({r["reason"] for r in report["regions"] if r["reason"]}),
        }
        passes.append(done)
        if workload.calls <= done["replays"]:
            break
        if len(passes) > 2 and done["replays"] and done["replays"] == passes[-2]["replays"]:
            break
    return passes, identical


def copied(part: Part, workload: Workload) -> dict[str, Any]:
    """One pass that nobody observes: calls that were replayed, the bytes that were copied into placeholders, which
    steps copied (their numbers, with the bytes), and which ran eagerly."""
    from grape.sessions import engine

    def now() -> tuple[int, int]:
        regions = list(engine().context.regions)
        return sum(one.replays for one in regions), sum(one.replay_counts.copied_bytes for one in regions)

    marked = [now()]
    mark = part.clock.mark

    def noted() -> None:
        mark()
        marked.append(now())

    with patch.object(part.clock, "mark", noted):
        timed(workload)
    marked = marked[-part.steps - 1 :]  # where the clock starts, it marks too
    steps = [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(marked)]
    return {
        "replays": sum(replays for replays, _ in steps),
        "copied_bytes_per_call": sum(nbytes for _, nbytes in steps) / workload.calls,
        "steps_that_copied": [(number, nbytes) for number, (_, nbytes) in enumerate(steps) if nbytes],
        "steps_that_ran_eagerly": [number for number, (replays, _) in enumerate(steps) if not replays],
    }


def measure(part: Part, rounds: int, most: int, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Eager first, then baselines and Grape in turn, so that all see the same clocks of the device. `save` gets what is
    known after each round: a run may be cut short."""
    eager, cuda = Samples(), torch.cuda.is_available()
    plain = Workload(name="eager", what=part.what, calls=part.steps, run=part.eager)
    expected = list(timed(plain)[0])
    for _ in range(max(2, rounds)):
        eager.take(part, plain, expected)
    built = part.baselines() if cuda else {}
    learned, right = learn(part, plain, expected, most)
    variants = {name: Workload(name=name, what="", calls=part.steps, run=run) for name, (_, run) in built.items()}
    variants["grape"] = plain
    samples = {name: Samples() for name in variants}
    for workload in variants.values():
        timed(workload)
    known = {
        "what": part.what,
        "steps": part.steps,
        "capture_s": {name: seconds for name, (seconds, _) in built.items()},
        "sessions": learned,
    }
    save(known)
    steady = copied(part, plain)
    for _ in range(rounds):
        for name, workload in variants.items():
            samples[name].take(part, workload, expected)
        found = {"eager": eager.to_dict(), **{name: taken.to_dict() for name, taken in samples.items()}}
        known |= {
            "variants": found,
            "identical": right and all(variant["identical"] for variant in found.values()),
            "ratios": ratios(found),
            "steady": steady,
        }
        save(known)
    _, _, report = part.observe(plain)  # every few calls of which run eagerly, for the comparison
    return {
        **known,
        "region": main_region(report),
        "regions": report["regions"],
        "findings": report["findings"],
        "allocated_bytes": torch.cuda.memory_allocated() if cuda else None,
        "reserved_bytes": torch.cuda.memory_reserved() if cuda else None,
    }


def keep(results: dict[str, Any], name: str, path: Path, known: dict[str, Any]) -> None:
    results[name] = known
    write(path, results)


def ratios(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    """How many times longer than Grape each variant takes for a whole pass; of medians."""
    grape = statistics.median(found["grape"]["pass_ms"]["samples"])
    return {
        f"{name} / grape": statistics.median(variant["pass_ms"]["samples"]) / grape
        for name, variant in found.items()
        if name != "grape"
    }


def summary(name: str, part: dict[str, Any]) -> str:
    lines = [f"{name}: {part['what']}, {part['steps']} steps, identical: {part['identical']}"]
    for variant, taken in part["variants"].items():
        step, whole = taken["step_ms"]["median"], taken["pass_ms"]["median"]
        lines.append(f"  {variant:13} {step:8.3f} ms a step (median) {whole:10.1f} ms a pass")
    lines += [f"  {name}: {ratio:.3f}" for name, ratio in part["ratios"].items()]
    region = part["region"]
    if region is not None:
        keys = ("name", "outcome", "calls", "replays", "copied_bytes_per_call", "alias_hits", "alias_misses")
        lines.append("  " + ", ".join(f"{key} {region[key]}" for key in keys))
    lines.append(f"  sessions: {json.dumps(part['sessions'])}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", choices=("plain", "reorder", "encoder"), default=None)
    parser.add_argument("--tokens", type=int, default=1024, help="length of the cache at the end, from 5")
    parser.add_argument("--lengths", type=int, default=119, help="lengths of the encoder's input")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--rounds", type=int, default=5, help="timed passes of each variant")
    parser.add_argument("--sessions", type=int, default=8, help="most passes under Grape before the timed ones")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=result_path("decode"))
    arguments = parser.parse_args()
    of_regions()
    if not PROMPT < arguments.tokens <= 1024:
        parser.error(f"--tokens lies between {PROMPT + 1} and 1024")
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    device = torch.device(arguments.device)
    parts: dict[str, Callable[[], Part]] = {
        "plain": partial(decoder, arguments.tokens, arguments.size, device, reorder=False),
        "reorder": partial(decoder, arguments.tokens, arguments.size, device, reorder=True),
        "encoder": partial(encoder, arguments.lengths, arguments.size, device),
    }
    from grape.sessions import engine

    results: dict[str, Any] = {"machine": machine()}
    for name in arguments.parts or parts:
        torch.manual_seed(0)
        began = time.perf_counter()
        save = partial(keep, results, name, arguments.out)
        results[name] = measure(parts[name](), arguments.rounds, arguments.sessions, save)
        results[name]["took_s"] = time.perf_counter() - began
        engine().reset()
        gc.collect()
        print(summary(name, results[name]), flush=True)
        write(arguments.out, results)
    return int(not all(results[name]["identical"] for name in arguments.parts or parts))


if __name__ == "__main__":
    raise SystemExit(main())
