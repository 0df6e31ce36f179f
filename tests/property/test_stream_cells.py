"""Random programs as cells of a real shell: what they leave behind is what they leave behind without Grape."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

import grape
from grape.magics import unload
from tests.property.stream_programs import Program, needs_compiler

PROGRAMS = 30
pytestmark = [pytest.mark.filterwarnings("ignore"), needs_compiler]

HEADS = ("%%grape --engine streams\n", "", "%%time\n%%grape --engine streams\n")


@pytest.fixture
def shell(closed_engine: None) -> Iterator[InteractiveShell]:
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance(config=config)
    made.run_cell("%load_ext grape")
    yield made
    unload(made)
    InteractiveShell.clear_instance()


def cells(seed: int) -> list[tuple[str, int]]:
    """How the iterations of a program are spread over cells, under the magic, behind it and below another."""
    r = random.Random(seed)
    return [(HEADS[0], 12), *((r.choice(HEADS), r.choice([1, 5, 12])) for _ in range(r.randint(1, 4)))]


def agree(seed: int, shell: InteractiveShell) -> int:
    """Compare one program; how many operators matched in cells under the magic."""
    plain = Program(seed)
    for _, iterations in cells(seed):
        plain.run(iterations)
    expected = plain.result()
    shell.user_ns["program"] = program = Program(seed)
    matched = 0
    for head, iterations in cells(seed):
        if random.Random(seed + iterations).random() < 0.1:
            shell.run_cell("%grape undo")
        with capture_output():
            shell.run_cell(f"{head}program.run({iterations})").raise_error()
        if head:
            assert grape.last is not None
            matched += sum(stream.matched for stream in grape.last.evidence.streams)
    found = program.result()
    different = [place for place, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b]
    assert not different, f"program {seed} differs at {different[:5]}"
    return matched


def test_programs_agree_bit_by_bit_as_cells(shell: InteractiveShell) -> None:
    matched = [agree(seed, shell) for seed in range(5000, 5000 + PROGRAMS)]
    assert sum(n > 0 for n in matched) > 0.6 * PROGRAMS
    assert not torch._C._dispatch_tls_is_dispatch_key_included("Fake")  # type: ignore[attr-defined]


@pytest.mark.random_long
@pytest.mark.timeout(0)
def test_many_programs_agree_bit_by_bit_as_cells(request: pytest.FixtureRequest, shell: InteractiveShell) -> None:
    draw = random.Random()
    for _ in range(request.config.getoption("--grape-random")):
        agree(draw.randrange(10_000, 1 << 40), shell)
