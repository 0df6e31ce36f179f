"""The benchmark scripts run as their first lines say, here with the smallest sizes on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MODELS = ("gpt2", "vit", "lstm", "gnn")


def run(tmp_path: Path, script: str, *arguments: str) -> dict[str, Any]:
    """Run the script with its results going to `tmp_path`; the results, or a failure that shows what it printed."""
    environment = {**os.environ, "OUT": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "benchmarks" / f"{script}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((tmp_path / f"{script}.json").read_text())
    assert {"gpu", "driver", "torch", "python", "grape"} <= found["machine"].keys()
    return found


def test_models_give_the_same_bits_under_grape(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    options = ("--device", "cpu", "--size", "tiny", "--runs", "1", "--only", *MODELS)
    models = run(tmp_path, "zoo", *options)["models"]
    assert set(models) == set(MODELS)
    for name, row in models.items():
        assert row["eager_repeatable"] and row["identical"] is True, name
        assert row["replayed_calls"][0] > 0, (name, row["codes"], row["verdict"])
        assert len(row["eager_ms"]["samples"]) == len(row["after_ms"]["samples"]) == 1
