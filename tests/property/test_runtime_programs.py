"""Random programs: after every call Grape and eager agree on results, arguments, state, random state and aliasing."""

from __future__ import annotations

import collections

import pytest
import torch._dynamo  # noqa: F401 - fake tensors import it, and it wraps functions of torch for good
from hypothesis import given, settings

from grape.runtime.backends.reference.backend import ReferenceBackend
from tests.property.programs import Program, codes, run_program, seeded

PARTS = 2
EXAMPLES = 120
"""For each part, when run with the fixed examples; `--grape-random N` runs N of each."""

pytestmark = pytest.mark.filterwarnings("ignore:Use of index_put_ on expanded tensors")


def _examples() -> int:
    return settings.default.max_examples if not settings.default.derandomize else EXAMPLES


@pytest.mark.parametrize("part", range(PARTS))
def test_a_call_served_by_grape_equals_an_eager_call(part: int) -> None:
    """1,040 programs; each part draws others."""
    served: collections.Counter[str] = collections.Counter()

    def program_agrees(program: Program) -> None:
        backend = ReferenceBackend(poison=True)
        served.update(codes([run_program(program, backend)]))

    settings(max_examples=_examples())(seeded(part)(given(program=Program.strategy())(program_agrees)))()
    assert served["replayed"] > 0.5 * sum(served.values()), served
