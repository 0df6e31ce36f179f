"""Random training programs: after every call Grape and eager agree on parameters, gradients, optimizer state, results
and the random state."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from unittest import mock

import pytest
import torch
import torch._dynamo  # noqa: F401 - optimizers import it, and it wraps functions of torch for good
from hypothesis import given, settings

from grape.runtime.backends.reference.backend import ReferenceBackend
from tests.property.programs import codes, seeded
from tests.property.training import TrainingProgram, run_training

PARTS = 2
EXAMPLES = 18

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def capturable_on_the_cpu() -> Iterator[None]:
    """torch refuses `capturable=True` on the CPU, although nothing in it needs a GPU."""
    from torch.optim import adam, adamw, rmsprop

    # Made of text: a function of the person's in the place of torch's has to be reached by their names.
    devices = eval("lambda supports_xla=True: ['cuda', 'xpu', 'hpu', 'cpu']")
    with mock.patch("torch.optim.optimizer._get_capturable_supported_devices", devices):
        for module in (adam, adamw, rmsprop):
            if hasattr(module, "_get_capturable_supported_devices"):
                mock.patch.object(module, "_get_capturable_supported_devices", devices).start()
        yield
    mock.patch.stopall()


@pytest.mark.parametrize("part", range(PARTS))
def test_a_training_step_served_by_grape_equals_an_eager_step(part: int) -> None:
    """152 programs of 20 steps; each part draws others."""
    served: collections.Counter[str] = collections.Counter()

    def program_agrees(program: TrainingProgram) -> None:
        served.update(codes([run_training(program, ReferenceBackend(poison=True))]))

    examples = settings.default.max_examples if not settings.default.derandomize else EXAMPLES
    settings(max_examples=examples)(seeded(part)(given(program=TrainingProgram.strategy())(program_agrees)))()
    assert served["replayed"] > 0.5 * sum(served.values()), served
