"""One of several ranks, a process that runs many programs: plainly, then under a stream, and tells what differs.

`python -m tests.property.rank_worker RANK TASKS` reads a line of JSON for each from the pipe
TASKS and answers with one.
"""

from __future__ import annotations

import dataclasses
import datetime
import faulthandler
import json
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from grape.streams import Settings, Stream, open_stream, session
from tests.property import rank_cases, rank_models
from tests.property.rank_programs import RankProgram
from tests.property.stream_programs import flat, settings_of

CASE = Settings(shortest=8, hot=2, settled=0, patience=0, price=0, doubt=0)
"""What repeats is deferred at once, and never doubted."""


def under(settings: Settings | None, run: Callable[[], list[Any]]) -> tuple[list[Any], Any]:
    opened = open_stream(settings) if settings is not None else None
    try:
        result = run()
    finally:
        if isinstance(opened, Stream):
            opened.close()
    if opened is None:
        return result, None
    assert isinstance(opened, Stream), opened
    return result, opened.evidence()


def random_program(seed: int, iterations: int) -> list[Any]:
    program = RankProgram(seed)
    program.run(iterations)
    return program.result()


def compared(task: dict[str, Any]) -> dict[str, Any]:
    if "case" in task:
        case = getattr(rank_cases, task["case"], None) or getattr(rank_models, task["case"])

        def run() -> list[Any]:
            torch.manual_seed(dist.get_rank())
            return flat(case())

        settings = CASE
    else:
        settings = settings_of(task["seed"])
        if task["seed"] % 2:
            settings = dataclasses.replace(settings, settled=0, patience=0, price=0, doubt=0, budget=1 << 32)

        def run() -> list[Any]:
            return random_program(task["seed"], task["iterations"])

    plain, _ = under(None, run)
    found, evidence = under(settings, run)
    different = [n for n, (a, b) in enumerate(zip(plain, found, strict=False)) if a != b]
    if len(plain) != len(found):
        different.append(min(len(plain), len(found)))
    return {
        "different": different[:5],
        "matched": evidence.matched,
        "seen": evidence.seen,
        "captured": evidence.captured,
    }


def main(rank: int, tasks: str) -> None:
    warnings.simplefilter("ignore")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    torch.set_num_threads(1)
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in open(tasks):  # noqa: SIM115 - until the process is killed
        task = json.loads(line)
        session._automatic = lambda device=task["device"]: device
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{task['store']}",
                rank=rank,
                world_size=task["world"],
                timeout=datetime.timedelta(seconds=task["seconds"]),
            )
            answer = compared(task)
            dist.barrier()  # else one that ends early takes the others' connections away
        except Exception:
            answer = {"error": traceback.format_exc()[-3000:]}
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
