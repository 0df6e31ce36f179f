"""Random loops whose names are bound again in branches: what plain Python leaves, or no replay."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from .loop_names import loop_source, under_grape

pytestmark = pytest.mark.usefixtures("closed_engine")

_SEEDS = 8
_outcomes: Counter[str] = Counter()


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_names_are_what_they_are_in_plain_python(seed: int, tmp_path: Path) -> None:
    source = loop_source(seed)
    expected, found, region = under_grape(source, tmp_path)
    assert found == expected, source
    _outcomes["replayed" if region.get("replays") else "plain"] += 1


def test_a_good_part_of_them_replays() -> None:
    if sum(_outcomes.values()) == _SEEDS:
        assert _outcomes["replayed"] >= _SEEDS // 6, _outcomes
