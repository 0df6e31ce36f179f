"""Every operator that torch tests itself leaves under operator streams what it leaves without."""

from __future__ import annotations

import pytest

from tests.processes import lines_of
from tests.property.stream_programs import needs_compiler

pytestmark = needs_compiler

COMPARE = "import torch\nfrom tests.property.operator_database import main\ntorch.set_num_threads(1)\nmain({!r}, {})"


def agree(device: str, samples: int) -> None:
    *differ, told = lines_of(COMPARE.format(device, samples))
    compared, matched = (int(word) for word in told.replace(",", "").split() if word.isdigit())
    assert not differ, differ
    assert matched > 0.9 * compared > 500


@pytest.mark.slow
def test_operators_agree() -> None:
    agree("cpu", 1)


@pytest.mark.random_long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("device", ["cpu", "pretended"])
def test_operators_agree_on_more_samples(device: str, request: pytest.FixtureRequest) -> None:
    agree(device, request.config.getoption("--grape-random"))
