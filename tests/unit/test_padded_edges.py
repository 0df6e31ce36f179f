"""The rewrite that pads neighbour lists: what it makes, what it refuses, and for which models it is offered."""

from __future__ import annotations

import linecache
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from grape.fixing import offers
from grape.fixing.verification import verify
from grape.model import CellEvidence
from grape.rewrite import Declined, Rewritten
from grape.rewrite.padded_edges import TOLERANCE
from grape.rewrite.registry import fix
from tests.unit.rewrite_cases import finding
from tests.unit.sample_evidence import cell

MADE = {
    "in a function": (
        3,
        """\
        def neighbours(x):
            d = torch.cdist(x, x)
            return ((d < cutoff) & ~eye).nonzero(as_tuple=True)

        for _ in range(9):
            i, j = neighbours(x)  # again
            x = x + model(x, i, j)
        """,
        """\
        import grape
        def neighbours(x):
            d = torch.cdist(x, x)
            return grape.pad_edges(((d < cutoff) & ~eye).nonzero(as_tuple=True), d, cutoff)

        for _ in range(9):
            i, j = neighbours(x)  # again
            x = x + model(x, i, j)
        """,
    ),
    "a mask with a name, an index [2, edges]": (
        4,
        """\
        import grape
        for _ in range(9):
            near = (d2 <= cutoff**2) & (d2 > 0)
            edge_index = near.nonzero().t().contiguous()
            x = x + model(x[edge_index[0]] - x[edge_index[1]], edge_index)
        """,
        """\
        import grape
        for _ in range(9):
            near = (d2 <= cutoff**2) & (d2 > 0)
            edge_index = grape.pad_edges(near.nonzero(), d2, cutoff**2).t().contiguous()
            x = x + model(x[edge_index[0]] - x[edge_index[1]], edge_index)
        """,
    ),
    "distances without a name": (
        2,
        """\
        for _ in range(9):
            edges = torch.stack(torch.where(torch.cdist(x, x) < self.cutoff))
            i, j = edges
            x = x + model(x, i, j)
        """,
        """\
        import grape
        for _ in range(9):
            edges = torch.stack(grape.pad_edges(torch.where((_distances := torch.cdist(x, x)) < self.cutoff), _distances, self.cutoff))
            i, j = edges
            x = x + model(x, i, j)
        """,  # noqa: E501
    ),
    "distances without a name, a mask with one": (
        2,
        """\
        near = torch.cdist(x, x) < 3.0
        rows = torch.argwhere(near)
        y = model(x, rows[:, 0], rows[:, 1])
        """,
        """\
        import grape
        near = (_distances := torch.cdist(x, x)) < 3.0
        rows = grape.pad_edges(torch.argwhere(near), _distances, 3.0)
        y = model(x, rows[:, 0], rows[:, 1])
        """,
    ),
    "two sides, stacked": (
        1,
        """\
        i, j = (d < cutoff).nonzero(as_tuple=True)
        y = model(x, torch.stack([i, j]))
        edge_index = torch.stack((i, j), dim=0)
        y = y + model(x, edge_index)
        """,
        """\
        import grape
        i, j = grape.pad_edges((d < cutoff).nonzero(as_tuple=True), d, cutoff)
        y = model(x, torch.stack([i, j]))
        edge_index = torch.stack((i, j), dim=0)
        y = y + model(x, edge_index)
        """,
    ),
    "a diagonal that is filled": (
        3,
        """\
        d = torch.cdist(x, x)
        d.fill_diagonal_(float("inf"))
        i, j = (d < cutoff).nonzero(as_tuple=True)
        y = model(x, i, j)
        """,
        """\
        import grape
        d = torch.cdist(x, x)
        d.fill_diagonal_(float("inf"))
        i, j = grape.pad_edges((d < cutoff).nonzero(as_tuple=True), d, cutoff)
        y = model(x, i, j)
        """,
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_made(name: str) -> None:
    line, before, after = MADE[name]
    made = fix(dedent(before), finding("GR103", line))
    assert isinstance(made, Rewritten) and made.source == dedent(after)
    assert made.tolerance == TOLERANCE
    at = next(n for n, text in enumerate(made.source.split("\n"), 1) if "grape.pad_edges(" in text)
    assert isinstance(again := fix(made.source, finding("GR103", at)), Declined)
    assert str(again) == f"line {at}: the list is padded already"


LIST = "i, j = (d < cutoff).nonzero(as_tuple=True)\n"
REFUSED = [
    (1, LIST + "print(len(i))", "line 2: `i` is used for more than calls and indices"),
    (1, LIST + "y = model(x, i, j) / i.shape[0]", "line 2: `i` is used for more than calls and indices"),
    (1, LIST + "kept.append(j)", "line 2: `j` is used for more than calls and indices"),
    (1, LIST + "e = torch.stack([i, j])\nprint(e)", "line 2: `i` is used for more than calls and indices"),
    (1, LIST + "half = i < j", "line 2: `i` is used for more than calls and indices"),
    (1, "y = model(x, (d < cutoff).nonzero())", "line 1: the list has no name"),
    (1, "self.edges = (d < cutoff).nonzero()", "line 1: the list has no name"),
    (1, "i = (d > cutoff).nonzero()", "line 1: the mask compares no distances with a radius"),
    (1, "i = ((d < cutoff) | bonded).nonzero()", "line 1: the mask compares no distances with a radius"),
    (1, "i = ((d < cutoff) & (a < b)).nonzero()", "line 1: which of them are distances is not told"),
    (1, "i = near.nonzero()", "line 1: where `near` comes from cannot be told"),
    (1, "i = (d < radius()).nonzero()", "line 1: the radius is computed on the line"),
    (1, "i = (x.d < cutoff).nonzero()", "line 1: the distances have no name"),
    (2, "d[mask] = 9.0\ni = (d < cutoff).nonzero()", "line 1: `d` is written in place"),
    (
        3,
        "near = d < cutoff\nd = other(x)\ni = near.nonzero()",
        "line 3: the radius or the distances may change before the list is made",
    ),
    (
        2,
        "def neighbours(d):\n    return (d < cutoff).nonzero()",
        "line 2: what is done with the list that `neighbours` returns cannot be told",
    ),
    (
        2,
        "def neighbours(d):\n    return (d < cutoff).nonzero()\nfind = neighbours\ni = neighbours(d)",
        "line 2: what is done with the list that `neighbours` returns cannot be told",
    ),
    (
        2,
        "def neighbours(d):\n    return (d < cutoff).nonzero()\ni = neighbours(d)\nprint(i.numel())",
        "line 4: `i` is used for more than calls and indices",
    ),
]


@pytest.mark.parametrize(("line", "source", "why"), REFUSED)
def test_refused(line: int, source: str, why: str) -> None:
    refused = fix(source, finding("GR103", line))
    assert isinstance(refused, Declined) and str(refused) == why


def test_refused_where_a_function_of_another_cell_looks_at_the_list() -> None:
    refused = fix(LIST + "y = model(x, i, j)", finding("GR103", 1), elsewhere={"i"})
    assert str(refused) == "line 1: a function that may run meanwhile uses `i`"


MODELS = '''
class Convolution(torch.nn.Module):
    """Messages by a network of the distance, added up with `index_add`."""

    def __init__(self):
        super().__init__()
        self.filter = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.SiLU(), torch.nn.Linear(8, 8))
        self.out = torch.nn.Linear(8, 1)
        self.register_buffer("features", torch.randn(30, 8))

    def forward(self, x, i, j):
        x = x.detach().requires_grad_()
        d = (x[i] - x[j]).norm(dim=-1, keepdim=True)
        fade = 0.5 * (torch.cos(math.pi * d / 1.0) + 1) * (d < 1.0)
        heard = torch.zeros_like(self.features).index_add(0, i, self.features[j] * self.filter(d) * fade)
        energy = self.out(torch.tanh(heard)).sum()
        (slope,) = torch.autograd.grad(energy, x)
        return energy.detach(), -slope


class Attention(torch.nn.Module):
    """Vectors between atoms, weighted by attention that ends at the cutoff, added up with `scatter_add`."""

    def __init__(self):
        super().__init__()
        self.query, self.key = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.register_buffer("features", torch.randn(30, 8))

    def forward(self, x, i, j):
        x = x.detach().requires_grad_()
        apart = x[j] - x[i]
        d2 = apart.square().sum(-1)
        fade = (1 - d2).clamp(min=0).square()
        weight = torch.exp((self.query(self.features)[i] * self.key(self.features)[j]).sum(-1)) * fade
        target = i[:, None].expand(-1, 3)
        moved = torch.zeros_like(x).scatter_add(0, target, weight[:, None] * apart)
        total = torch.zeros(30).scatter_add(0, i, weight) + 1
        energy = (moved / total[:, None]).square().sum()
        (slope,) = torch.autograd.grad(energy, x)
        return energy.detach(), -slope


class Unending(Convolution):
    """The same without a cutoff: whatever is in the list counts."""

    def forward(self, x, i, j):
        d = (x[i] - x[j]).norm(dim=-1, keepdim=True)
        heard = torch.zeros_like(self.features).index_add(0, i, self.features[j] * self.filter(d))
        return self.out(heard).sum().detach(), torch.zeros_like(x)
'''
STEPS = """\
def neighbours(x):
    distances = (x[:, None] - x).norm(dim=-1)
    near = (distances < 1.1) & (distances > 0)
    return near.nonzero(as_tuple=True)


x, v, energies = start.clone(), torch.zeros(30, 3), []
for step in range(20):
    if step % 5 == 0:
        i, j = neighbours(x)
    energy, forces = model(x, i, j)
    v = v + 0.02 * forces
    x = x + 0.02 * v
    if step % 5 == 0:
        energies.append(energy.item())
"""


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """As a notebook has it once the models were defined."""
    import math

    monkeypatch.setattr(linecache, "cache", {})
    torch.manual_seed(0)
    space: dict[str, Any] = {"__name__": "__main__", "torch": torch, "math": math}
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    exec(compile(MODELS, str(path), "exec"), space)
    space["start"] = torch.rand(30, 3) * 2.5
    return space


def offered(namespace: dict[str, Any], tmp_path: Path, model: str) -> tuple[CellEvidence, Any]:
    """The finding about the list with its fix, after the steps ran."""
    torch.manual_seed(1)
    namespace["model"] = namespace[model]().eval()
    path = tmp_path / "steps.py"
    path.write_text(STEPS)
    exec(compile(STEPS, str(path), "exec"), namespace)
    evidence = cell(source=STEPS, file=str(path))
    (found,) = offers.with_fixes(evidence, (finding("GR103", 4, file=str(path)),), namespace)
    return evidence, found


@pytest.mark.parametrize("model", ["Convolution", "Attention"])
def test_offered_where_interactions_end_at_a_cutoff(namespace: dict[str, Any], tmp_path: Path, model: str) -> None:
    _, found = offered(namespace, tmp_path, model)
    assert found.fix is not None and "+    return grape.pad_edges(near.nonzero(as_tuple=True), distances, 1.1)" in (
        found.fix.diff
    )
    assert found.fix.verified or found.fix.why.startswith("results differ by up to")
    made = fix(STEPS, finding("GR103", 4))
    assert isinstance(made, Rewritten)
    length = len(namespace["i"])
    energies = list(namespace["energies"])
    exec(made.source, namespace)
    assert length < len(namespace["i"]) <= length * 9 / 8, "something was padded"
    assert namespace["energies"] == pytest.approx(energies, rel=TOLERANCE)


def test_not_offered_where_every_pair_in_the_list_counts(namespace: dict[str, Any], tmp_path: Path) -> None:
    _, found = offered(namespace, tmp_path, "Unending")
    assert found.fix is None
    why = dict(found.evidence)[offers.NOT_OFFERED]
    assert str(why).startswith("the rewrite computed something else when both ran: `")


def test_not_offered_where_it_was_not_compared(namespace: dict[str, Any], tmp_path: Path) -> None:
    evidence, _ = offered(namespace, tmp_path, "Convolution")
    (found,) = offers.with_fixes(evidence, (finding("GR103", 4, file=evidence.file),), None)
    why = "it is offered only where both were compared, and it is part of a script"
    assert found.fix is None and dict(found.evidence)[offers.NOT_OFFERED] == why
    namespace["model"].register_forward_hook(lambda *_: None)
    (found,) = offers.with_fixes(evidence, (finding("GR103", 4, file=evidence.file),), namespace)
    why = "it is offered only where both were compared, and `model` has hooks"
    assert found.fix is None and dict(found.evidence)[offers.NOT_OFFERED] == why


@pytest.mark.parametrize(
    ("new", "options", "result"),
    [
        ("i = torch.arange(6)", {}, "different"),
        ("i = torch.arange(6)", {"lengthened": True}, "identical"),
        ("i = torch.arange(1, 7)", {"lengthened": True}, "different"),
        ("i = torch.arange(3)", {"lengthened": True}, "different"),
    ],
)
def test_what_stands_behind_the_old_indices_does_not_count(new: str, options: dict[str, bool], result: str) -> None:
    assert verify("i = torch.arange(4)", new, {"torch": torch}, **options).result == result


@pytest.mark.parametrize(
    ("new", "result"),
    [("e = [1.0, 100.001]", "close"), ("e = [1.001, 100.0]", "close"), ("e = [1.0, 100.1]", "different")],
)
def test_numbers_of_a_list_are_close_by_the_largest_of_them(new: str, result: str) -> None:
    assert verify("e = [1.0, 100.0]", new, {"torch": torch}, tolerance=1e-4).result == result
