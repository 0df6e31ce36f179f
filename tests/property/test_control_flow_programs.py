"""Random functions with nested control flow over tensors: plain, rewritten, under the select lowering, and captured.

The programs are generated as source from a seed. Each runs on several inputs, so that branches go both ways; results,
arguments and object state must have identical bits. A lowering may refuse instead, with a reason. A captured program
is one graph that is replayed on all inputs, with conditional bodies and without. `--grape-random N` runs N programs.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from grape.rewrite.control_flow import RewrittenFlow, rewrite_control_flow
from grape.runtime.backends.protocol import CaptureFailed
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.predication.lowering.select import SelectLowering
from tests.property.control_flow_programs import INPUTS, Cell, Program, SelectsOnly, bits, call, replays

PROGRAMS = 150
CELLS = 40
CAPTURED = 16
PARTS = 2
_CPU = torch.device("cpu")
# More than this, and the property says little.
MOST_REFUSED = 0.2


def _run(seed: int, outcomes: Counter[str], reasons: Counter[str]) -> None:
    source = Program(seed).source()
    made = rewrite_control_flow(source, filename="program")
    if not isinstance(made, RewrittenFlow):
        outcomes["not rewritten"] += 1
        reasons[made.why] += 1
        return
    if seed % 5 == 0:
        again = rewrite_control_flow(made.source, filename="program")
        twice = f"seed {seed}: rewritten twice\n{source}"
        assert not isinstance(again, RewrittenFlow) or again.source == made.source, twice
    # Every other program runs on two inputs, to keep the whole test short.
    for inputs in (INPUTS[seed % 4], INPUTS[(seed + 1 + seed // 4) % 4])[: 1 + seed % 2]:
        expected = call(source, inputs)
        message = f"seed {seed}, inputs {inputs}\n{source}\n{made.source}"
        assert call(made.source, inputs) == expected, f"rewritten differs: {message}"
        try:
            found = call(made.source, inputs, SelectLowering(_CPU))
        except CaptureFailed as refusal:
            outcomes["refused"] += 1
            reasons[f"{refusal.code} {refusal}"] += 1
            continue
        outcomes["identical"] += 1
        assert found == expected, f"select differs: {message}"


@pytest.mark.parametrize("part", range(PARTS))
def test_rewritten_programs_are_identical_or_refused(part: int, pytestconfig: pytest.Config) -> None:
    outcomes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for seed in range(part, _count(pytestconfig, PROGRAMS), PARTS):
        _run(seed, outcomes, reasons)
    calls = outcomes["identical"] + outcomes["refused"]
    print(f"{dict(outcomes)}; refused {outcomes['refused'] / calls:.1%}")
    assert all(reason.strip() for reason in reasons)
    assert outcomes["identical"] > (1 - MOST_REFUSED) * calls, reasons.most_common(5)


def _count(config: pytest.Config, usual: int) -> int:
    return int(config.getoption("--grape-random")) or usual


@pytest.mark.parametrize("kind", [ReferenceBackend, SelectsOnly])
def test_captured_programs_are_identical_or_refused(kind: type[ReferenceBackend], pytestconfig: pytest.Config) -> None:
    outcomes: Counter[str] = Counter()
    backend = kind(poison=True)
    programs = _count(pytestconfig, CAPTURED)
    for seed in range(programs):
        outcomes += replays(Program(seed).source(), seed, backend)
    print({name: number for name, number in outcomes.items() if not name.startswith("refused")})
    print([(name, number) for name, number in outcomes.most_common(12) if name.startswith("refused")])
    assert outcomes["identical"] > (1 - 2 * MOST_REFUSED) * programs, outcomes.most_common(8)
    backend.close()


def _run_cell(source: str, inputs: tuple[Any, ...], select: SelectLowering | None = None) -> Any:
    a, b, c = (torch.tensor(values) for values in inputs[:3])
    cell = Cell(1.5)
    names = {"a": a, "b": b, "c": c, "cell": cell, "count": inputs[3], "torch": torch}
    with select.active() if select is not None else nullcontext():
        exec(compile(source, "cell", "exec"), names)
    left = tuple(names[name] for name in "abc")
    return bits((*left, a, b, c, cell.state, cell.table["k"], cell.buffer))


def test_rewritten_cells_are_identical_or_refused(pytestconfig: pytest.Config) -> None:
    identical, cells = 0, _count(pytestconfig, CELLS)
    for seed in range(cells):
        source, inputs = Program(seed).cell(), INPUTS[seed % 4]
        made = rewrite_control_flow(source, filename="cell")
        assert isinstance(made, RewrittenFlow)
        expected = _run_cell(source, inputs)
        message = f"seed {seed}, inputs {inputs}\n{source}\n{made.source}"
        assert _run_cell(made.source, inputs) == expected, f"rewritten differs: {message}"
        try:
            found = _run_cell(made.source, inputs, SelectLowering(_CPU))
        except CaptureFailed:
            continue
        identical += 1
        assert found == expected, f"select differs: {message}"
    assert identical > cells / 2
