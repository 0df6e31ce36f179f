"""The timelines of a real run that ship with the documentation, and the pictures that are made of them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from grape.cli import main
from grape.render.html.page import read_view
from grape.render.timeline.view import View

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "docs" / "data" / "gpt2-decode.json"


@pytest.fixture(scope="module")
def view() -> View:
    return read_view(RECORDED.read_text(encoding="utf-8"), RECORDED.name)


def test_both_timelines_hold_host_launches_and_device(view: View) -> None:
    main_region = view.data["regions"][view.data["main"]]
    before, after = (view.data["timelines"][main_region[f"{side}_timeline"]] for side in ("before", "after"))
    assert "; NVIDIA H200; 2,000 calls of " in view.data["headline"]
    assert main_region["name"] == "GPT2LMHeadModel (model)" and main_region["verified"] == "identical"
    assert {row["lane"] for row in before["rows"]} == {"lines", "host", "launch", "device"}
    assert {row["lane"] for row in after["rows"]} == {"host", "launch", "device"}, "a replay runs no line"
    launches = [row["count"] for row in before["rows"] if row["lane"] == "launch"]
    kernels = [row["count"] for row in before["rows"] if row["lane"] == "device"]
    assert sum(launches) >= sum(kernels) == 247
    replay, nodes = (row["count"] for row in after["rows"] if row["lane"] == "device")
    assert (replay, nodes) == (3, 247), "the graph as one span, copies before and after it, and its nodes below"
    assert ["CUDA graph, 247 nodes", "graph"] in view.data["kinds"]


def test_figures_fit_each_other(view: View) -> None:
    main_region = view.data["regions"][view.data["main"]]
    before, after = (float(main_region[side].removesuffix(" ms")) for side in ("before", "after"))
    assert main_region["speedup"] == f"{before / after:.1f}x"
    said = re.match(r"cell ([\d.]+)x faster \(([\d.]+) -> ([\d.]+) s\), outputs identical", view.data["verdict"])
    assert said, view.data["verdict"]
    assert float(said[1]) == round(float(said[2]) / float(said[3]), 1)
    assert {one["code"] for one in view.data["findings"]} == {"GR301", "GR501"}
    source = view.data["sources"]["In[5]"].splitlines()
    line = "out = model(input_ids=token, past_key_values=cache, use_cache=True)"
    assert [source[one["line"] - 1].strip() for one in view.data["findings"]] == [line, line]


def test_files_are_named_without_the_machine(view: View) -> None:
    files = {position[0] for place in view.data["places"] for position in place if position}
    assert "transformers/models/gpt2/modeling_gpt2.py" in files
    assert [file for file in files if file.startswith(("/", "~")) or ":" in file] == []


def test_the_pictures_are_of_this_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where this fails, run scripts/screenshots.py --only report and look at the pictures."""
    page = tmp_path / "view.html"
    assert main(["view", str(RECORDED), "--out", str(page)]) == 0
    digest = hashlib.sha256(page.read_bytes()).hexdigest()
    images = ROOT / "docs" / "images"
    assert (images / "made-of.txt").read_text(encoding="utf-8") == f"{digest}\n"
    assert (images / "report-light.png").read_bytes() != (images / "report-dark.png").read_bytes()
