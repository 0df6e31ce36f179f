"""What the person calls the arguments of a region."""

from __future__ import annotations

import pytest

from grape.advisor.arguments import Arguments
from grape.model import RegionEvidence
from tests.unit.trace_builder import at, cell, region

LOOP = "for t in range(9):\n    {0}\n"


def arguments(call: str, name: str = "step", *, source: str | None = None, line: int = 1) -> Arguments:
    evidence: RegionEvidence = region(name, line=line)
    return Arguments(cell(evidence, source=source or LOOP.format(call)), evidence)


@pytest.mark.parametrize(
    ("call", "path", "name"),
    [
        ("y = step(x, h)", "args[0][1]", "`h`"),
        ("y = step(torch.randn(4,64), h)", "args[0][0]", "`torch.randn(4,64)`"),
        ("y = step(ids, past=cache)", "args[1]['past']", "`past`"),
        ("y = step(ids, past=cache)", "args[1]['past'].layers[0].keys", "`past.layers[0].keys`"),
        ("y = step(batch)", "args[0][0][1]", "`batch[1]`"),
        ("y = step(*batch)", "args[0][1]", "the second argument"),
        ("y = step(x)", "args[0][6]", "the 7th argument"),
        ("y = other(x)", "args[0][0]", "the first argument"),
        ("y = other(x)", "args[0][0].layers[1]", "`layers[1]` of the first argument"),
        ("y = step(x) + step(z)", "args[0][0]", "the first argument"),
        ("y = step(a_function(of_many, arguments, that_is, very_long))", "args[0][0]", "the first argument"),
        ("y = step(f(x))", "args[0][0][1]", "`[1]` of the first argument"),
        ("y = (", "args[0][0]", "the first argument"),
        ("y = step(x)", "past.0", "`past.0`"),
    ],
)
def test_as_the_call_in_the_cell_has_it(call: str, path: str, name: str) -> None:
    assert arguments(call).name(path) == name


def test_a_call_over_several_lines_is_shown_on_one() -> None:
    assert arguments("y = step(f(a,\n           b))").name("args[0][0]") == "`f(a, b)`"


def test_where_the_cell_has_no_call_the_definition_names_them() -> None:
    source = "@torch.no_grad()\ndef step(x, /, past, *, mask=None):\n    return x\n"
    named = arguments("", source=source)
    assert [named.name(path) for path in ("args[0][0]", "args[0][1][0]", "args[1]['mask']", "args[0][2]")] == [
        "`x`",
        "`past[0]`",
        "`mask`",
        "the third argument",
    ]
    assert named.called_at is None and not named.called_here


def test_a_definition_in_another_cell_is_found_in_the_sources() -> None:
    evidence = region("step", at=at(1, file="In[2]"))
    known = cell(evidence, sources=(("In[2]", "def step(token, place):\n    return token\n"),))
    assert Arguments(known, evidence).name("args[0][1]") == "`place`"


def test_the_first_argument_of_a_method_is_self() -> None:
    method = arguments("y = decoder.step(token, h)", "Decoder.step")
    assert [method.name(f"args[0][{i}]") for i in (1, 2)] == ["`token`", "`h`"]
    assert method.name("args[0][3]") == "the third argument"
    assert arguments("y = step(x)", "outer.<locals>.step").name("args[0][0]") == "`x`"


def test_a_module_is_called_by_its_variable() -> None:
    assert arguments("y = net(ids)", "GPT2 (net)").name("args[0][0]") == "`ids`"
    assert arguments("y = net(ids)", "GPT2 (net) #2").name("args[0][0]") == "`ids`"


def test_names_are_listed_two_at_most() -> None:
    named = arguments("y = step(a, b, c)")
    paths = [f"args[0][{i}]" for i in range(3)]
    assert named.listed(paths[:1]) == "`a`"
    assert named.listed(paths[:2]) == "`a` and `b`"
    assert named.listed(paths) == "`a`, `b` and 1 more"


@pytest.mark.parametrize(
    ("source", "path", "fed_back"),
    [
        (LOOP.format("h = step(x, h)"), "args[0][1]", True),
        (LOOP.format("h = step(x, h)"), "args[0][0]", False),
        (LOOP.format("out, (h, c) = step(x, h)"), "args[0][1][0]", True),
        (LOOP.format("out, h = step(x, state=h)"), "args[1]['state']", True),
        ("while True:\n    h = step(x, h)\n", "args[0][1]", True),
        ("def run(h):\n    for x in xs:\n        h = step(x, h)\n", "args[0][1]", True),
        (LOOP.format("h = step(x, h); h = h * 2"), "args[0][1]", False),
        (LOOP.format("h = step(x, h).detach()"), "args[0][1]", False),
        (LOOP.format("y = step(x, h)"), "args[0][1]", False),
        ("h = step(x, h)\n", "args[0][1]", False),
        ("for x in xs:\n    def f():\n        h = step(x, h)\n", "args[0][1]", False),
    ],
)
def test_a_result_comes_back_only_where_a_loop_hands_it_on_unchanged(source: str, path: str, fed_back: bool) -> None:
    assert arguments("", source=source).fed_back(path) is fed_back


def test_the_line_of_the_call() -> None:
    assert arguments("h = step(x, h)").called_at == at(2)
    inside = "def run(h):\n    for x in xs:\n        h = step(x, h)\n"
    assert arguments("", source=inside).called_at == at(3, function="run")
    twice = arguments("y = step(x) + step(z)")
    assert twice.called_at is None and twice.called_here


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("args[0][0].rng", "`self.rng`"),
        ("result[0]", "what it returns"),
        ("result[0].logits", "`logits` of what it returns"),
        ("result[0][1]", "`[1]` of what it returns"),
        ("result[1][1]", "`token`"),
        ("result[2]['mask']", "`mask`"),
    ],
)
def test_a_path_that_a_refusal_gave_is_named_as_well(path: str, name: str) -> None:
    method = arguments("y = decoder.step(token, mask=m)", "Decoder.step")
    assert method.name(path) == name
