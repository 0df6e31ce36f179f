"""Ten notebooks in the style of public tutorials through `grape run` and `grape advise`, end to end on a CPU.

Each computes a result plainly, computes it again under `%%grape`, and asserts that both are the same; so an exit code
of 0 means that the results did not change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jsonschema import Draft202012Validator

from grape.cli import main

pytestmark = pytest.mark.usefixtures("forked_kernels")

FOLDER = Path(__file__).parents[1] / "data" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SCHEMA: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text())
FOUND = {
    "01_text_generation": set(),
    "02_image_classifier_training": {"GR101"},
    "03_evaluation": {"GR101"},
    "04_diffusion_sampling": set(),
    "05_policy_rollout": {"GR102"},
    "06_graph_network": set(),
    "07_attention_cache": {"GR202"},
    "08_style_of_lightning": {"GR101"},
    "09_mask_rcnn_post_processing": {"GR103"},
    "10_async_and_plots": set(),
}
CLOCKED = {"GR303"}
"""What is found where a loop waits for its loader long enough: beside other work it may."""
ADVISED = {
    "02_image_classifier_training": {"GR101"},
    "03_evaluation": {"GR101"},
    "05_policy_rollout": {"GR102"},
    "07_attention_cache": {"GR202"},
    "08_style_of_lightning": {"GR101"},
    "09_mask_rcnn_post_processing": {"GR103"},
}


def test_there_are_ten() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(FOUND)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_grape_run(path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    content = path.read_bytes()
    files = {name: tmp_path / f"report.{name}" for name in ("json", "html")}
    executed = tmp_path / "executed.ipynb"
    words = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    assert main(["run", str(path), *words, "--out", str(executed)]) == 0, capfd.readouterr().err
    assert path.read_bytes() == content
    written = json.loads(files["json"].read_text())
    reports = written.get("cells", [written])
    for report in reports:
        Draft202012Validator(SCHEMA).validate(report)
    assert {finding["code"] for finding in reports[0]["findings"]} - CLOCKED == FOUND[path.stem]
    before, after = (nbformat.read(file, as_version=4) for file in (path, executed))
    nbformat.validate(after)
    assert [(c.id, c.source, c.metadata) for c in after.cells] == [(c.id, c.source, c.metadata) for c in before.cells]
    errors = [output for cell in after.cells for output in cell.get("outputs", ()) if output.output_type == "error"]
    assert len(errors) == (path.stem == "10_async_and_plots")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_grape_advise(path: Path, tmp_path: Path) -> None:
    assert main(["advise", str(path), "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())["findings"]
    assert {finding["code"] for finding in found} == ADVISED.get(path.stem, set())
