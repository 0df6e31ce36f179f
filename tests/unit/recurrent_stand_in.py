"""cuDNN's recurrent operators on the CPU: compiled once for each torch, loaded into the process that asks."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import torch

from grape.native import build

SOURCE = Path(__file__).parent / "data" / "recurrent.cpp"


def load() -> None:
    """From here on `_cudnn_rnn` and `_cudnn_rnn_backward` have kernels of the CPU, for good."""
    torch.ops.load_library(str(_built()))


def _built() -> Path:
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    library = build._artifact().with_name(f"recurrent_{digest}.so")
    if not library.exists():
        compiler = build._compiler()
        assert compiler is not None
        library.parent.mkdir(parents=True, exist_ok=True)
        with build._locked(library.with_suffix(".lock")):
            made = library.with_suffix(".part")
            command = [*compiler, *build._flags(), str(SOURCE), "-o", str(made), *build._libraries()]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            made.replace(library)
    return library
