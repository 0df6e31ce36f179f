"""Processes that are ranks of one program after the other."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from types import TracebackType
from typing import Any

from tests.processes import Program, environment_of


class Team:
    """Ranks that wait for programs. One that hangs is named, and where each rank stands."""

    def __init__(self, size: int, seconds: float = 60) -> None:
        self.size, self.seconds, self.tasks = size, seconds, 0
        self.folder = tempfile.TemporaryDirectory(prefix="grape-ranks-")

    def __enter__(self) -> Team:
        self.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.stop()
        self.folder.cleanup()

    def start(self) -> None:
        environment = environment_of() | {"GRAPE_REFERENCE": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.ranks, self.pipes = [], []
        for rank in range(self.size):
            pipe = os.path.join(self.folder.name, f"tasks {rank} {self.tasks}")
            os.mkfifo(pipe)
            self.pipes.append(os.open(pipe, os.O_RDWR))  # which waits for no reader
            words = ("-m", "tests.property.rank_worker", str(rank), pipe)
            self.ranks.append(Program(*words, environment=environment))

    def stop(self) -> None:
        for rank in self.ranks:
            rank.kill()
        for rank, pipe in zip(self.ranks, self.pipes, strict=True):
            rank.wait()
            os.close(pipe)

    def run(self, name: str, world: int, device: str, **task: Any) -> list[dict[str, Any]]:
        """What each of `world` ranks found. Raises if one fails, or takes longer than `seconds`."""
        self.tasks += 1
        task |= {"world": world, "device": device, "seconds": self.seconds}
        task["store"] = os.path.join(self.folder.name, f"store {self.tasks}")
        ranks = self.ranks[:world]
        before = [len(rank.out()) for rank in ranks]
        for pipe in self.pipes[:world]:
            os.write(pipe, json.dumps(task).encode() + b"\n")
        until, texts = time.monotonic() + self.seconds + 5, [""] * world
        while not all(text.endswith("\n") for text in texts):
            texts = [rank.out()[start:] for rank, start in zip(ranks, before, strict=True)]
            if time.monotonic() > until or any(rank.returncode is not None for rank in ranks):
                raise AssertionError(f"{name} hangs, or a rank ended:\n{self.where(texts)}")
            time.sleep(0.002)
        answers: list[dict[str, Any]] = [json.loads(text) for text in texts]
        failed = [f"rank {n}: {answer['error']}" for n, answer in enumerate(answers) if "error" in answer]
        assert not failed, f"{name}: " + "\n".join(failed)
        return answers

    def where(self, texts: list[str]) -> str:
        """What ranks answered, and the stacks of those that did not; they are started anew."""
        for rank, text in zip(self.ranks, texts, strict=False):
            if not text and rank.returncode is None:
                os.kill(rank.pid, signal.SIGUSR1)
        time.sleep(0.5)
        told = [f"rank {n}: {text or self.ranks[n].err()[-3000:]}" for n, text in enumerate(texts)]
        self.stop()
        self.start()
        return "\n".join(told)
