"""Processes that are ranks of one program after the other: to start one takes longer than most programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[2]


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
        environment = {**os.environ, "GRAPE_REFERENCE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.errors = [Path(self.folder.name) / f"rank {rank}" for rank in range(self.size)]
        self.ranks = []
        for rank, errors in enumerate(self.errors):
            with errors.open("w") as file:
                command = [sys.executable, "-m", "tests.property.rank_worker", str(rank)]
                self.ranks.append(
                    subprocess.Popen(
                        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file
                    )
                )
        for rank_of in self.ranks:
            assert rank_of.stdout is not None
            os.set_blocking(rank_of.stdout.fileno(), False)

    def stop(self) -> None:
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            rank.wait()
            for pipe in (rank.stdin, rank.stdout):
                if pipe is not None:
                    pipe.close()

    def run(self, name: str, world: int, device: str, **task: Any) -> list[dict[str, Any]]:
        """What each of `world` ranks found. Raises if one fails, or takes longer than `seconds`."""
        self.tasks += 1
        task |= {"world": world, "device": device, "seconds": self.seconds}
        task["store"] = os.path.join(self.folder.name, f"store {self.tasks}")
        for rank in self.ranks[:world]:
            assert rank.stdin is not None
            rank.stdin.write(json.dumps(task).encode() + b"\n")
            rank.stdin.flush()
        until, texts = time.monotonic() + self.seconds + 5, [b""] * world
        while not all(text.endswith(b"\n") for text in texts):
            for n, rank in enumerate(self.ranks[:world]):
                assert rank.stdout is not None
                texts[n] += rank.stdout.read() or b""
            if time.monotonic() > until or any(rank.poll() is not None for rank in self.ranks[:world]):
                raise AssertionError(f"{name} hangs, or a rank ended:\n{self.where([t.decode() for t in texts])}")
            time.sleep(0.002)
        answers: list[dict[str, Any]] = [json.loads(text) for text in texts]
        failed = [f"rank {n}: {answer['error']}" for n, answer in enumerate(answers) if "error" in answer]
        assert not failed, f"{name}: " + "\n".join(failed)
        return answers

    def where(self, texts: list[str]) -> str:
        """What ranks answered, and the stacks of those that did not; they are started anew."""
        for rank, text in zip(self.ranks, texts, strict=False):
            if not text and rank.poll() is None:
                rank.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        told = [f"rank {n}: {text or self.errors[n].read_text()[-3000:]}" for n, text in enumerate(texts)]
        self.stop()
        self.start()
        return "\n".join(told)
