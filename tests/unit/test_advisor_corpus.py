"""The labelled corpus: precision and recall of the rules, and what the corpus has to hold to mean something."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from pathlib import Path

import pytest

from grape.model import CODES
from scripts.corpus import CorpusCell, Score, load, run_cell, score

CELLS = load()


@pytest.fixture(scope="module")
def result() -> Score:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return score(CELLS)


def test_precision_and_recall(result: Score) -> None:
    report = "\n".join(result.mistakes)
    assert result.precision() >= 0.95, report
    assert result.recall() >= 0.95, report


@pytest.mark.parametrize("code", list(CODES))
def test_no_code_is_bad(result: Score, code: str) -> None:
    assert result.right[code] >= 4
    assert min(result.precision(code), result.recall(code)) >= 0.75, "\n".join(result.mistakes)


def test_size() -> None:
    assert len(CELLS) >= 80
    positive = Counter(code for cell in CELLS for code in cell.codes)
    near = Counter(code for cell in CELLS for code in cell.near_misses - cell.codes)
    assert {code: positive[code] for code in CODES if positive[code] < 4} == {}
    assert {code: near[code] for code in CODES if near[code] < 2} == {}


def test_a_wrong_label_is_noticed(tmp_path: Path) -> None:
    """The counting itself can fail: a finding without its label is wrong, a label without its finding is missed."""
    source = Path(__file__).parents[1] / "data" / "cells" / "decode_tolist.py"
    text = source.read_text()
    (tmp_path / "decode_tolist.py").write_text(text.replace("  # GR101", "") + "x = 1  # GR103\n")
    (cell,) = load(tmp_path, tests=tmp_path)
    counted = score([cell])
    assert (counted.right, counted.wrong, counted.missed) == (Counter(), Counter(GR101=1), Counter(GR103=1))
    assert counted.precision() == counted.recall() == 0.0


def test_labels_are_read_from_the_ends_of_lines() -> None:
    cell = named("decode_tolist")
    assert cell.labels == {("GR101", "In[2]", 7)}
    assert named("held_metric_class").near_misses == {"GR101", "GR404"}


def test_every_finding_has_a_line_a_message_and_an_advice_or_a_reason_for_none() -> None:
    for cell in CELLS[::4]:
        for finding in run_cell(cell):
            assert finding.at is not None and finding.at.line >= 1 and finding.message
            assert finding.advice or finding.severity == "hint", (cell.name, finding)
            assert json.dumps(finding.to_dict())


def named(name: str) -> CorpusCell:
    return next(cell for cell in CELLS if cell.name == name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("counter_attribute", "`Counted (net)` changes `self.calls` at each call, which a replay would not"),
        ("activations_list", "`step` changes `kept` at each call, which a replay would not"),
        ("global_step", "`update` changes `steps` at each call, which a replay would not"),
    ],
)
def test_hidden_state_is_named(name: str, message: str) -> None:
    (finding,) = run_cell(named(name))
    assert finding.message.startswith(message)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("forgot_no_grad", "if the gradients are not used, call `Sequential (model)` under `torch.inference_mode()`"),
        ("straight_through", "its gradients are used outside of it: put forward, `backward` and the optimizer's step"),
    ],
)
def test_advice_about_gradients(name: str, advice: str) -> None:
    (finding,) = run_cell(named(name))
    assert finding.advice is not None and finding.advice.startswith(advice)
