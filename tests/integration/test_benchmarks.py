"""The benchmark scripts run as their first lines say, here with the smallest sizes on the CPU."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch._dynamo  # transformers imports it later, and it wraps functions of torch for good

from grape.runtime.backends.reference.backend import ReferenceBackend
from tests.processes import ROOT, environment_of, lines_of, ran

BENCHMARKS = ROOT / "benchmarks"
T = TypeVar("T")
MODELS = ("gpt2", "vit", "lstm", "gnn")


def run(tmp_path: Path, script: str, *arguments: str, **variables: str) -> dict[str, Any]:
    """Run the script with its results going to `tmp_path`; the results, or a failure that shows what it printed."""
    environment = environment_of() | {"OUT": str(tmp_path), **variables}
    done = ran(str(BENCHMARKS / f"{script}.py"), *arguments, environment=environment, timeout=200)
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


def test_first_runs_of_generate_give_the_same_tokens(tmp_path: Path) -> None:
    rows = run(tmp_path, "first_run", "--small", "--tokens", "6", "--models", "llama")["rows"]
    assert [row["kind"] for row in rows] == ["greedy", "sampling"]
    assert all(row["identical"] and len(row["grape_s"]) == 5 and row["first_over_warm"] > 0 for row in rows)


def test_loops_that_starve_and_one_that_does_not(tmp_path: Path) -> None:
    names = ["rows of a TensorDataset", "items that take long", "a list of batches"]
    loops = run(tmp_path, "cold_and_starved", "--small", "--only", *names)["loops"]
    assert [(row["name"], row["found"]) for row in loops] == [(name, at < 2) for at, name in enumerate(names)]


def test_decode_loops_replay_and_agree(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    sizes = ("--size", "tiny", "--tokens", "14", "--lengths", "6", "--rounds", "1")
    found = run(tmp_path, "decode", "--device", "cpu", *sizes)
    for part, steps in (("plain", 9), ("reorder", 9), ("encoder", 6)):
        result = found[part]
        assert result["identical"] is True, part
        assert result["region"]["replays"] >= steps, (part, result["region"])
        assert len(result["variants"]["grape"]["last_pass_steps_ms"]) == result["steps"] == steps
        assert {"copied_bytes_per_call", "alias_hits", "alias_misses"} <= result["region"].keys()


def test_cells_whose_control_flow_follows_data_agree_with_the_rewrites_applied(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    parts = run(tmp_path, "control_flow", "--small", "--runs", "1")["parts"]
    assert list(parts) == ["a", "b", "c", "d", "e"]
    for name, part in parts.items():
        assert part["repeatable"] and part["identical"] is True, name
        (region,) = part["regions"]
        assert region["outcome"] == "replayed" and region["verified"] == "identical", (name, part["findings"])
        assert region["replays"] > 0, name
        assert part["diffs"] and all("_flow." in diff for diff in part["diffs"]), name
        assert not any(finding.startswith(("GR101", "GR102")) for finding in part["findings"]), part["findings"]


TRAINED = {"written": {"speech", "graph"}, "fused": {"gpt2"}}


@pytest.mark.parametrize("variant", TRAINED)
def test_cells_that_train_end_as_the_plain_ones(tmp_path: Path, variant: str) -> None:
    pytest.importorskip("transformers")
    names = TRAINED[variant]
    sizes = ("--small", "--runs", "1", "--learn", "2")
    parts = run(tmp_path, "training", *sizes, "--variants", variant, "--only", *names)["parts"]
    assert set(parts) == names
    for name, variants in parts.items():
        row = variants[variant]
        assert not row["errors"] and "ended" not in row, (name, row)
        assert row["repeatable"] is True and row["identical"] is True, name
        (loop,) = [region for region in row["regions"] if region["outcome"] == "replayed"]
        assert loop["name"].startswith("loop at line") and loop["verified"] == "identical" and loop["replays"] > 20
        # The run that divides the loop tells of the step that stays outside; later ones go through the parts at once.
        found = [finding for run in row["learning"] for finding in run["findings"]]
        stepping = [finding for finding in found if finding.startswith(("GR101", "GR403"))]
        assert bool(stepping) == (variant == "written"), (name, stepping)
        assert not any("blocker" in finding for finding in stepping), stepping
        assert row["plain"]["run_ms"]["n"] == row["grape"]["run_ms"]["n"] == 1


def test_a_policy_replays_between_the_steps_of_its_environment(tmp_path: Path) -> None:
    sizes = ("--small", "--runs", "1", "--learn", "2", "--variants", "fused")
    row = run(tmp_path, "training", *sizes, "--only", "policy")["parts"]["policy"]["fused"]
    assert row["repeatable"] is True and row["identical"] is True and not row["errors"]
    outcomes = {region["name"]: region["outcome"] for region in row["regions"]}
    assert outcomes["act"] == outcomes["learn"] == "replayed", outcomes


def test_steps_of_a_simulation_are_the_plain_ones_and_padded_lists_within_rounding(tmp_path: Path) -> None:
    sizes = ("--device", "cpu", "--small", "--steps", "40", "--runs", "1", "--learn", "3")
    rows = run(tmp_path, "simulation", *sizes, "--molecules", "22", "--engines", "streams", "regions")["rows"]
    assert list(rows) == ["dense 22", "list 22", "padded 22"]
    for name, row in rows.items():
        for engine, found in row["engines"].items():
            assert found.get("identical") and found["plain_repeats"], (name, engine, found)
            last = found["reports"][-1]
            if engine == "regions":
                assert sum(region["replays"] for region in last["regions"]) > 20, (name, last)
    assert rows["padded 22"]["apart_from_list"]["energy"] < 1e-5
    (rewrite, *_) = rows["list 22"]["engines"]["regions"]["rewrite"]
    assert "grape.pad_edges" in rewrite["diff"] and (rewrite["verified"] or "within" in rewrite["why"])


def test_pipelines_give_the_results_of_the_loop(tmp_path: Path) -> None:
    parts = run(tmp_path, "pipeline", "--small", "--only", "two_devices", "learning")["parts"]
    assert set(parts) == {"two_devices", "learning"}
    for name, part in parts.items():
        for variant, row in part["variants"].items():
            assert row["identical"] is True and row["streamed_ms"]["n"] == 2, (name, variant)
        assert part["variants"]["pipeline"]["lag"] == part["stages"] - 1


# What `libraries.py` sets for its processes. Where it is set it does not start itself again.
FIXED = {
    **{"PYTHONHASHSEED": "0", "MPLBACKEND": "Agg", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TQDM_DISABLE": "1"},
    **{"GRAPE_REFERENCE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
}


def test_cells_over_libraries_end_as_the_plain_ones(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    out = tmp_path / "libraries.json"
    options = ("--device", "cpu", "--reference", "--pairs", "1", "--out", str(out))
    run(tmp_path, "libraries", *options, "--engines", "streams", "--only", "transformers_loop", **FIXED)
    names = ("lstm_language", "pyg_gcn")
    found = run(tmp_path, "libraries", *options, "--engines", "auto", "--only", *names, **FIXED)
    rows = found["rows"]
    assert set(rows) == {"transformers_loop", "lstm_language", "pyg_gcn"}
    assert rows["pyg_gcn"]["needs"] == ["torch_geometric"] and ("skipped" in rows["pyg_gcn"]) != (
        "engines" in rows["pyg_gcn"]
    )
    for name in ("transformers_loop", "lstm_language"):
        (row,) = rows[name]["engines"].values()
        assert not (row["failed"] or row["differences"] or row["apart"]), (name, row)
        last = row["streams"][-1]
        assert last["matched"] > 0.4 * last["operators"], (name, last)
        assert len(row["plain_s"]) == len(row["grape_s"]) == 3 and len(row["pairs_s"]) == 1


def a_run(kept: float, drawn: float, output: str = "", state: str = "a") -> dict[str, Any]:
    """What a process found, of three equal passes."""
    parts = {"kept": [str(kept), [kept, 4.0]], "drawn": [str(drawn), [drawn]]}
    one = {"seconds": 1.0, "estimate_s": 1.0, "result": str(parts), "parts": parts, "reports": []}
    return {"passes": [{**one, "cells": [[output, None]], "random": {"torch": "a", "numpy": state}}] * 3}


@pytest.mark.parametrize(
    ("again", "grape", "differences", "apart"),
    [
        (a_run(2.0, 1.0), a_run(2.0, 1.0), [], {}),
        (a_run(2.0, 1.0), a_run(2.5, 1.0), ["kept"], {}),
        (a_run(3.0, 1.0), a_run(2.5, 1.0), [], {"kept": [0.25, 0.125]}),
        (a_run(2.0, 1.5), a_run(2.5, 1.0), ["kept"], {"drawn": [0.5, 0.0]}),
        (a_run(2.0, 1.0), a_run(2.0, 1.0, "printed"), ["cells"], {}),
        (a_run(2.0, 1.0, "13:07"), a_run(2.0, 1.0, "13:08"), [], {}),
        (a_run(2.0, 1.0), a_run(2.0, 1.0, state="b"), ["random state of numpy"], {}),
        (a_run(2.0, 1.0, state="c"), a_run(2.0, 1.0, state="b"), [], {}),
    ],
    ids=["the same", "a part", "plain runs differ", "in another part", "output", "a clock", "drawn", "drawn unseeded"],
)
def test_what_differs_under_grape_and_not_between_plain_runs(
    monkeypatch: pytest.MonkeyPatch,
    again: dict[str, Any],
    grape: dict[str, Any],
    differences: list[str],
    apart: dict[str, list[float]],
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    libraries = importlib.import_module("libraries")
    row = libraries.compared({"plain": a_run(2.0, 1.0), "again": again, "grape": grape})
    assert sorted(row["differences"]) == sorted(f"pass {n}: {name}" for n in (1, 2, 3) for name in differences)
    assert row["apart"] == apart


def test_a_module_may_be_of_a_distribution_of_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    libraries = importlib.import_module("libraries")
    for module, distribution in (("dateutil", "python-dateutil"), ("torch", "torch")):
        assert libraries.version_of(module) == importlib.metadata.version(distribution)


def test_without_time_a_part_says_so(tmp_path: Path) -> None:
    parts = run(tmp_path, "training", "--small", "--budget", "0", "--only", "mlp")["parts"]
    assert parts == {"mlp": {name: {"ended": "no time was left"} for name in ("written", "fused", "compile")}}


def test_host_costs_are_split_at_the_launch(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    names = ("arguments", "nested-cache", "dynamic-cache")
    cases = run(tmp_path, "host_cost", "--device", "cpu", "--calls", "20", "--learning", "16", "--only", *names)[
        "cases"
    ]
    assert set(cases) == set(names)
    for name, case in cases.items():
        assert case["replays"] == case["calls"] == 20, name
        parts = [case[key]["median"] for key in ("before_launch_us", "launch_us", "after_launch_us")]
        assert all(part > 0 for part in parts) and case["whole_call_us"]["median"] > max(parts)
        assert any("runtime/" in row["function"] for row in case["profile"]), name


class ReferencePool:
    """Stands for the CUDA pool of `_handwritten`: the same rules about addresses, on the CPU."""

    kept: list[ReferenceBackend] = []  # noqa: RUF012  the tape's memory lives as long as its backend

    def __init__(self) -> None:
        self._backend = ReferenceBackend(poison=True)
        self.kept.append(self._backend)

    def warm(self, body: Callable[[], object]) -> None:
        body()

    def capture(self, body: Callable[[], T]) -> tuple[Any, T]:
        return self._backend.capture(body)


def test_handwritten_baselines_give_the_bits_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Grape is compared with must itself be right, pass after pass."""
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    handwritten, decode, measure = (importlib.import_module(name) for name in ("_handwritten", "decode", "_measure"))
    monkeypatch.setattr(handwritten, "Pool", ReferencePool)
    monkeypatch.setattr(ReferencePool, "kept", [])
    torch.manual_seed(0)
    cpu = torch.device("cpu")
    parts = [decode.decoder(12, "tiny", cpu, reorder=False), decode.decoder(12, "tiny", cpu, reorder=True)]
    parts.append(decode.encoder(5, "tiny", cpu))
    for part in parts:
        expected = part.eager()
        for name, (_, loop) in part.baselines().items():
            for _ in range(2):
                assert measure.same(expected, loop()), (part.what, name)
                assert len(part.clock.steps_ms()) == part.steps


SHAPES = """
import json
import torch
import shapes
from grape.sessions import close_engine

torch.manual_seed(0)
job = shapes.audio(4, "tiny", torch.device("cpu"))
found = shapes.of_grape(job, 1, 5)
close_engine()
print(json.dumps([found, shapes.of_longest(job, 2)]))
"""


def test_shapes_share_executables_and_agree() -> None:
    """In a process of its own, as the benchmark runs: it measures the process's memory."""
    pytest.importorskip("transformers")
    found, longest = json.loads(lines_of(SHAPES, BENCHMARKS)[-1])
    account = found["account"]
    assert found["identical"] is True and max(done["replays"] for done in found["sessions"]) == 4, found["sessions"]
    assert account["graphs"] >= 4 > account["classes"] >= 1 and account["alone"] == 0
    assert found["capture_ms"]["whole"]["n"] >= 4 and found["switch_ms"]["switch"]["n"] > 0
    assert found["timed"]["grape"]["identical"] and found["limited_again"]["identical"]
    assert longest["account"]["graphs"] >= 1


def test_baselines_of_shapes_give_the_bits_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    handwritten, shapes, measure = (importlib.import_module(name) for name in ("_handwritten", "shapes", "_measure"))
    for module in (handwritten, shapes):
        monkeypatch.setattr(module, "Pool", ReferencePool)
    monkeypatch.setattr(ReferencePool, "kept", [])
    torch.manual_seed(0)
    cpu = torch.device("cpu")
    for job in (shapes.causal("gpt2", 9, "tiny", cpu), shapes.causal("gptj", 8, "tiny", cpu)):
        replay = job.resident()
        assert measure.same(job.run(), replay()) and measure.same(job.run(), replay()), job.what
        own = job.own([0, 2])
        graphs = [thing for thing in own if hasattr(thing, "replay")]
        assert len(graphs) == 2 and len(own) == 10
        graphs[0].replay()
        longest = own[4]  # the results of the larger shape: logits, then keys and values in turn
        wanted = shapes._step(_model_of(job), own[0], own[1])
        assert measure.same(wanted, longest), job.what
    job = shapes.audio(4, "tiny", cpu)
    replay = job.resident()
    assert measure.same(job.run(), replay()) and len(job.own([0, 3])) == 8


def _model_of(job: Any) -> Any:
    return job.run.args[0]


def test_an_executable_is_timed_after_updates(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    found = run(tmp_path, "updates", "--device", "cpu", "--size", "tiny", "--lengths", "3", "--updates", "8")
    assert found["alike"] == 3
    assert len(found["ways"]) == 6
    for name, measured in found["ways"].items():
        assert [row["updates"] for row in measured["rows"]] == [1, 8], name
        assert all(row["us"] > 0 < row["fresh_us"] for row in measured["rows"])
        assert measured["remedies"].keys() == {
            "none",
            "an update while the device is idle",
            "seconds for a new one",
            "a new one",
        }
