"""Why a region stays eager: one table, and nobody reads its sentences but a person."""

from __future__ import annotations

import ast
import pickle
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from grape.model import CODES, Position, Reason, Refused

ROOT = Path(__file__).parents[2]
HERE = Position(file="In[1]", line=3, function="step")


def fields(reason: Reason) -> list[str]:
    """Those of a reason's sentence."""
    return [name for _, name, _, _ in string.Formatter().parse(reason.sentence) if name]


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_a_row_of_its_own(reason: Reason) -> None:
    assert reason.code in CODES
    assert Reason[reason.name] is reason and pickle.loads(pickle.dumps(reason)) is reason
    refused = Refused.because(reason, HERE, **dict.fromkeys(fields(reason), "it"))  # type: ignore[arg-type]
    assert refused.why == reason.sentence.format(**dict.fromkeys(fields(reason), "it"))
    assert (refused.code, refused.at) == (reason.code, HERE)
    assert reason.severity == ("hint" if reason.code == "GR406" else "blocker")
    assert reason.opens is (reason.code not in ("GR402", "GR406"))


def test_a_field_that_is_not_given_is_noticed_where_the_refusal_is_made() -> None:
    with pytest.raises(KeyError, match="operator"):
        Refused.because(Reason.DATA_SHAPE)


def test_what_a_sentence_has_no_field_for_is_kept() -> None:
    refused = Refused.because(Reason.CHANGES_STATE, changed="a list {of} 1", by="", path="kept", name="")
    assert refused.why == "the call changes a list {of} 1, which a replay would not"
    assert (refused.detail("path"), refused.detail("nothing")) == ("kept", "")


TEXTS = frozenset({"why", "message", "reason", "verdict"})
"""Attributes whose values are sentences. `reason` may also be a `Reason`, a finding's code, or the name that operator
streams have for why an operator ran as written (`Stop.reason`)."""
LOOKING = frozenset({"startswith", "endswith", "find", "index", "count", "removeprefix", "removesuffix", "partition"})
MATCHING = frozenset({"match", "search", "fullmatch", "findall", "split"})


def comparisons(tree: ast.AST) -> Iterator[int]:
    """The lines that decide something by a sentence."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops) or any(map(is_symbol, sides)):
                continue
            if all(ast.unparse(side).rpartition(".")[2] == "reason" for side in sides):
                continue
            if any(map(is_text, sides)):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            looks = node.func.attr in LOOKING and is_text(node.func.value)
            if looks or (node.func.attr in MATCHING and any(map(is_text, node.args))):
                yield node.lineno
        elif isinstance(node, ast.Match) and is_text(node.subject):
            yield node.lineno


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in TEXTS


def is_symbol(node: ast.expr) -> bool:
    """A constant with a name, a finding's code, or an enumeration of either."""
    if isinstance(node, (ast.Tuple, ast.Set)):
        return all(map(is_symbol, node.elts))
    if isinstance(node, ast.Constant):
        return node.value is None or (isinstance(node.value, str) and node.value in CODES)
    return isinstance(node, ast.Name) and node.id in ("CODE", "_OF_NAMES", "READ")


@pytest.mark.parametrize("path", sorted((ROOT / "grape").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_sentence_is_compared(path: Path) -> None:
    assert list(comparisons(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("refused.why == NO_WORK", True),
        ("'gradient' in refused.why", True),
        ("any(word in refusal.why for word in words)", True),
        ("refusal.why.startswith('it calls ')", True),
        ("finding.message.partition(':')", True),
        ("re.match('line', cell.why)", True),
        ("re.search(pattern, finding.message)", True),
        ("entered.reason != 'no GPU'", True),
        ("refused.reason is Reason.NO_WORK", False),
        ("refused.reason in _OF_NAMES", False),
        ("region.reason == 'GR406'", False),
        ("stop.reason == READ", False),
        ("stop.reason == reason", False),
        ("stop.why == reason", True),
        ("main.reason is None", False),
        ("why = refused.why", False),
        ("f'{refused.why}; {finding.message}'", False),
    ],
)
def test_a_comparison_is_found(source: str, found: bool) -> None:
    assert bool(list(comparisons(ast.parse(source)))) is found
