"""What a result says about the machine that it comes from, and where results are written."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["SHARED", "WORKERS", "machine", "result_path", "write"]

WORKERS = "BENCHMARK_WORKERS"
"""The environment variable that says how many processes measure at a time on the machine."""
SHARED = "BENCHMARK_SHARED"
"""The environment variable that is set where other processes use the GPU at the same time."""


def machine() -> dict[str, Any]:
    """Device, driver and versions of this process. Without a CUDA device `gpu`, `driver` and `cuda` are None,
    as `workers` is where nothing says it. `date` is the day in UTC."""
    import torch

    import grape

    gpu = torch.cuda.is_available()
    return {
        "gpu": torch.cuda.get_device_name() if gpu else None,
        "driver": _driver() if gpu else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda if gpu else None,
        "transformers": _version("transformers"),
        "python": sys.version.split()[0],
        "grape": grape.__version__,
        "cpus": os.cpu_count(),
        "cpu": _cpu(),
        "workers": int(os.environ[WORKERS]) if WORKERS in os.environ else None,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _cpu() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, None) or platform.processor() or None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    said = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    return next(iter(said.split()), "")  # a line for each GPU


def result_path(name: str) -> Path:
    """`NAME.json` in the folder that the environment variable OUT names, else in `benchmarks/results`."""
    folder = os.environ.get("OUT")
    return (Path(folder) if folder else Path(__file__).parent / "results") / f"{name}.json"


def write(path: Path, results: dict[str, Any]) -> None:
    """As JSON; files of this checkout are named from its root."""
    root = str(Path(__file__).resolve().parents[1]) + os.sep
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1).replace(root, "") + "\n")
