"""Tests on a GPU name the engine that they are about; those that name none are about regions."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPE_ENGINE", "regions")
