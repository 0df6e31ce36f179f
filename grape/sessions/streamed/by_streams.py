"""Whether operator streams can serve anything in this process, and how they are set."""

from __future__ import annotations

from dataclasses import replace

from ...options import REFERENCE
from ...originals import environ
from ...streams import Settings
from ..engine import Engine

PROFILE = "operator streams have nothing to look on at (--profile); --engine regions has"
NO_GPU = "no GPU here, and on a CPU streams make nothing faster"


def settings_for(memory_budget: int | None) -> Settings:
    """Operators of the GPU are deferred where there is one, else those of the CPU; with `REFERENCE` set from the first
    that repeat, as tests are short.
    """
    import torch

    served = Settings(device="cuda" if torch.cuda.is_available() else "cpu")
    if environ.get(REFERENCE) == "1":
        served = replace(served, settled=0, patience=0, price=0, doubt=0)
    return served if memory_budget is None else replace(served, budget=memory_budget)


def hindrance(owner: Engine) -> str | None:
    """Why streams serve nothing in this process now; None where nothing speaks against them."""
    return None if owner.context.serves else NO_GPU
