"""Whole programs, plain and under `%%grape`: are the results the same, and what does the person wait?

    python benchmarks/programs.py FOLDER [NAME ...] [--device cpu|cuda] [--pairs 2] [--out FILE]

A program is a Python file whose cells are separated by lines that begin with `# %%`; those that somebody would speed
up begin with `# %%grape`, and the last cell binds RESULT. Each runs in processes of its own, plain and under Grape,
three passes each. The first pass runs all cells, later ones the marked cells and the last. Compared are RESULT and the
random states after each pass, and output and exception of each marked cell; where something differs the program runs
plainly once more, and what differs between the two plain runs is not judged. Times are those of the marked cells with
their reports. The process under Grape goes on with pairs of a plain pass, everything taken back, and one under Grape:
how long a pass takes differs from process to process by more than is to be seen. The estimate of the plain time that
the reports give is set against those plain passes. GRAPE_ENGINE names the engine. Let nothing else run on the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

MARK = "# %%"
KINDS = ("plain", "again", "grape")
PASSES = 3


def cells_of(text: str) -> list[tuple[bool, str]]:
    """(marked, source) of each cell that is not blank."""
    parts = re.split(rf"^(?={MARK})", text, flags=re.MULTILINE)
    found = []
    for part in parts:
        head, _, body = part.partition("\n") if part.startswith(MARK) else ("", "", part)
        if body.strip():
            found.append((head.startswith(f"{MARK}grape"), body))
    return found


# -- one process ------------------------------------------------------------------------------------------------------


def digest(value: Any, depth: int = 0) -> Any:
    """What a value holds, in a form that JSON takes: bytes of tensors and arrays, items of containers, state."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        copied = value.detach().to("cpu", copy=True)  # what NumPy was handed, streams of the CPU leave alone for good
        data = copied.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return [str(value.dtype), list(value.shape), value.requires_grad, hashlib.sha256(data).hexdigest()[:16]]
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    if isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
        return digest(value.state_dict(), depth + 1)
    if isinstance(value, dict) and depth < 8:
        return {str(key): digest(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and depth < 8:
        return [digest(item, depth + 1) for item in value]
    return (
        repr(value) if isinstance(value, (bool, int, float, complex, str, bytes, type(None))) else type(value).__name__
    )


def short(digested: Any) -> str:
    return hashlib.sha256(json.dumps(digested, sort_keys=True).encode()).hexdigest()[:16]


def samples(value: Any, depth: int = 0) -> list[float]:
    """Numbers of what `digest` digests, of a tensor at most 64: how far two runs are apart, where their bits differ."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.is_complex() or value.is_quantized:
            return []
        return value.detach().reshape(-1)[:64].double().cpu().tolist()
    if isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
        return samples(value.state_dict(), depth + 1)
    if isinstance(value, (dict, list, tuple)) and depth < 8:
        items = value.values() if isinstance(value, dict) else value
        return [number for item in items for number in samples(item, depth + 1)]
    return [float(value)] if isinstance(value, (int, float)) else []


def random_states() -> dict[str, str]:
    """By generator: a program that seeds one does not seed all."""
    import random

    import numpy as np
    import torch

    states = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "random": repr(random.getstate()).encode(),
        "numpy": repr(np.random.get_state()).encode(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
    return {name: hashlib.sha256(state).hexdigest()[:16] for name, state in states.items()}


def run(program: Path, *, under_grape: bool, pairs: int) -> Iterator[dict[str, Any]]:
    """What each pass gave, as it ends; those of the pairs are the last."""
    import torch
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    shell = InteractiveShell.instance(config=config)
    if under_grape:
        from grape.magics import load

        load(shell)
    cells = cells_of(program.read_text())
    serves = Serving()
    for number in range(PASSES + 2 * pairs):
        observes = under_grape and (number < PASSES or (number - PASSES) % 2 == 1)
        if number >= PASSES:
            serves.set(observes)
        seconds, estimate_ms, ran, reports = 0.0, 0.0, [], []
        for index, (marked, source) in enumerate(cells):
            if number and not marked and index != len(cells) - 1:
                continue
            observed = marked and observes
            took, output, error = run_cell(shell, f"%%grape --no-widget\n{source}" if observed else source)
            if marked:
                seconds += took
                ran.append([output, error])
            elif error is not None:
                raise RuntimeError(f"cell {index}, which is not under Grape: {error}")
            if observed:
                import grape

                reports.append(grape.last.to_dict() if grape.last is not None else None)
                plain_ms = reports[-1]["cell"]["plain_ms"] if reports[-1] is not None else None
                estimate_ms = float("nan") if plain_ms is None else estimate_ms + plain_ms
        result = shell.user_ns.get("RESULT")
        parts = result if isinstance(result, dict) else {"RESULT": result}
        yield {
            "seconds": seconds,
            "estimate_s": estimate_ms / 1e3 if observes else None,
            "result": short(digest(result)),
            "parts": {str(name): [short(digest(part)), samples(part)] for name, part in parts.items()},
            "reports": reports,
            "cells": ran,
            "random": random_states(),
        }


class Serving:
    """Off, everything is taken back: nothing of the person's or of torch's is replaced then. What was captured and
    recorded stays, for the next pass.
    """

    def __init__(self) -> None:
        self._as_begun: bool | None = None

    def set(self, on: bool) -> None:
        from grape.sessions import engine

        if self._as_begun is None:
            self._as_begun = engine().context.serves
        engine().context.serves = on and self._as_begun  # else a stream would serve plain cells
        if not on:
            engine().interceptor.remove()
            engine().outliner.withdraw()


def run_cell(shell: Any, source: str) -> tuple[float, str, str | None]:
    """Seconds, standard output without the report, and the exception of one cell."""
    import torch
    from IPython.utils.capture import capture_output

    start = time.perf_counter()
    with capture_output() as captured:
        result = shell.run_cell(source, store_history=True)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    took = time.perf_counter() - start
    error = result.error_in_exec or result.error_before_exec
    return took, captured.stdout, f"{type(error).__name__}: {error}"[:300] if error is not None else None


def child(program: Path, kind: str, pairs: int, out: Path) -> None:
    """In a process of its own, which ends here."""
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    status = 1
    try:
        with open(out.with_suffix(".log"), "w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            found: dict[str, Any] = {"passes": []}
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                for one in run(program, under_grape=kind == "grape", pairs=pairs if kind == "grape" else 0):
                    found["passes"].append(one)
            found["machine"] = machine_of()
            out.write_text(json.dumps(found))
            status = 0
    except BaseException:
        out.with_suffix(".log").write_text(traceback.format_exc())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(status)  # threads and workers of programs are nobody's concern


def machine_of() -> dict[str, Any]:
    from _machine import machine

    return machine()


# -- all of them ------------------------------------------------------------------------------------------------------


def measured(program: Path, kind: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What a process found that was forked for the program. This one has imported torch, and has not touched a GPU."""
    out = folder / f"{program.stem}.{kind}.json"
    process = multiprocessing.get_context("fork").Process(target=child, args=(program, kind, arguments.pairs, out))
    process.start()
    process.join(arguments.timeout)
    if late := process.is_alive():
        process.kill()
        process.join()
    return _outcome(out, process.exitcode, f"longer than {arguments.timeout:g} s" if late else None)


def _outcome(out: Path, status: int | None, why: str | None) -> dict[str, Any]:
    if why is None and status != 0:
        log = out.with_suffix(".log")
        why = f"exit {status}: {log.read_text()[-300:] if log.is_file() else ''}"
    return {"passes": [], "failed": why} if why is not None else json.loads(out.read_text())


def row_of(name: str, runs: dict[str, Any]) -> dict[str, Any]:
    """`later_s`: a plain pass and one under Grape, of the pairs in one process the middle one by its ratio; without
    pairs the third passes of two processes, which differ by more than Grape takes. Medians of either would set passes
    beside each other that do different work: a program that trains on may end earlier in each.
    """
    times = {kind: [one["seconds"] for one in runs[kind]["passes"]] for kind in KINDS}
    later = times["grape"][PASSES:]
    pairs = [later[at : at + 2] for at in range(0, len(later), 2)]
    third = zip(times["plain"][PASSES - 1 :], times["grape"][PASSES - 1 : PASSES], strict=False)
    beside = sorted(pairs or third, key=lambda one: one[1] / one[0])
    return {
        "name": name,
        "plain_s": times["plain"],
        "grape_s": times["grape"][:PASSES],
        "pairs_s": pairs,
        "later_s": list(beside[len(beside) // 2]) if beside else None,
        "estimate_s": [one["estimate_s"] for one in runs["grape"]["passes"] if one["estimate_s"] is not None],
        "failed": {kind: run["failed"] for kind, run in runs.items() if "failed" in run},
        "differences": differences(runs),
    }


def differences(runs: dict[str, Any]) -> list[str]:
    """What differs under Grape, and does not between the two plain runs, in whichever pass."""
    passes = [tuple(told(runs[kind]["passes"][number]) for kind in KINDS) for number in range(fewest(runs))]
    found = []
    for part in dict.fromkeys(name for pass_ in passes for one in pass_ for name in one):
        if any(plain.get(part) != again.get(part) for plain, again, _ in passes):
            continue
        numbered = enumerate(passes, 1)
        found += [f"pass {n}: {part}" for n, (plain, _, grape) in numbered if plain.get(part) != grape.get(part)]
    return found


def told(one: dict[str, Any]) -> dict[str, Any]:
    """What a pass gave, by what it is."""
    states = {f"random state of {name}": state for name, state in one["random"].items()}
    return {"result": one["result"], "cells": one["cells"], **states}


def fewest(runs: dict[str, Any]) -> int:
    return min(PASSES, *(len(runs[kind]["passes"]) for kind in KINDS))


def summary(row: dict[str, Any]) -> str:
    verdict = "; ".join([*row["differences"], *(f"{kind} {why}" for kind, why in row["failed"].items())]) or "identical"
    if row["later_s"] is None:
        return f"{row['name']:26s} {verdict}"
    plain, grape = row["later_s"]
    return (
        f"{row['name']:26s} first {row['plain_s'][0]:7.2f} -> {row['grape_s'][0]:7.2f} s, later {plain:7.2f} -> "
        f"{grape:7.2f} s ({grape / plain:.2f}x), estimate {row['estimate_s'][PASSES - 1]:7.2f} s  {verdict}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--pairs", type=int, default=2, help="of a plain pass and one under Grape, in one process")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each process")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder for what each process found: reports of each pass too")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    programs = [folder / f"{name}.py" for name in arguments.names] or sorted(folder.glob("*.py"))
    missing = [str(program) for program in programs if not program.is_file()]
    if missing or not programs:
        parser.error(f"no program: {', '.join(missing) or folder}")
    fixed = {"PYTHONHASHSEED": "0", "MPLBACKEND": "Agg"}
    if arguments.device == "cpu":
        fixed |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    if any(os.environ.get(name) != value for name, value in fixed.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **fixed})
    import torch  # noqa: F401  once, before the forks
    from _machine import result_path, write

    out = arguments.out or result_path(f"programs_{arguments.device}")
    rows, machine = [], None
    with tempfile.TemporaryDirectory() as name:
        kept = (arguments.keep or Path(name)).resolve()
        kept.mkdir(parents=True, exist_ok=True)
        for program in programs:
            runs = {kind: measured(program, kind, arguments, kept) for kind in ("plain", "grape")}
            runs["again"] = runs["plain"]
            if differences(runs):
                runs["again"] = measured(program, "again", arguments, kept)
            machine = machine or runs["grape"].get("machine")
            rows.append(row_of(program.stem, runs))
            print(summary(rows[-1]), flush=True)
            engine = os.environ.get("GRAPE_ENGINE", "auto")
            about = {"device": arguments.device, "engine": engine, "machine": machine, "passes": PASSES}
            write(out, about | {"programs": rows})


if __name__ == "__main__":
    main()
