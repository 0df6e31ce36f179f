"""Tests of CUDA graphs are of regions, unless they name an engine: by default streams come first on a GPU."""

from __future__ import annotations

import pytest

from grape.options import ENGINE


@pytest.fixture(autouse=True)
def regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENGINE, "regions")
