"""The generator of a CUDA device, while a capture runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["another_seed"]


@contextmanager
def another_seed(device: torch.device) -> Iterator[None]:
    """Inside, the device's default generator has another seed, and afterwards the state that it had.

    torch refuses to set a seed in a capture, unless it is the generator's own: so a body that sets the seed that the
    person has just set would pass, and a replay would not set it.
    """
    generator = torch.cuda.default_generators[device.index]
    state = generator.get_state()
    generator.manual_seed(generator.initial_seed() ^ 1)
    try:
        yield
    finally:
        generator.set_state(state)
