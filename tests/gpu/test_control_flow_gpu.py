"""Random programs with nested control flow on the device: one graph each, replayed on all inputs, or refused."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from grape.runtime.graphed import make_backend
from tests.property.control_flow_programs import Program, replays

pytestmark = pytest.mark.gpu
PROGRAMS = 200
MOST_REFUSED = 0.4


def test_captured_programs_are_identical_or_refused(pytestconfig: pytest.Config) -> None:
    backend = make_backend(torch.device("cuda"))
    backend.prepare()
    outcomes: Counter[str] = Counter()
    programs = int(pytestconfig.getoption("--grape-random")) or PROGRAMS
    for seed in range(programs):
        outcomes += replays(Program(seed).source(), seed, backend)
    refused = programs - outcomes["identical"]
    print(f"{programs} programs, conditional bodies: {backend.conditional_bodies}; refused {refused / programs:.1%}")
    print([(name, number) for name, number in outcomes.most_common(12) if name.startswith("refused")])
    assert refused < MOST_REFUSED * programs, outcomes.most_common(8)
    backend.close()
