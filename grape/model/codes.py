"""The finding codes: a stable contract. One rule, one file, one documentation page each."""

from __future__ import annotations

from typing import Literal

__all__ = ["CODES", "REWRITTEN", "REWRITTEN_IN_LIBRARIES", "Outcome", "Severity"]

Severity = Literal["blocker", "costly", "hint"]
Outcome = Literal["replayed", "observed", "refused"]

CODES: dict[str, str] = {
    "GR101": "host-sync",
    "GR102": "data-dependent-branch",
    "GR103": "data-dependent-shape",
    "GR201": "shape-dynamism",
    "GR202": "growing-state",
    "GR301": "placeholder-copy",
    "GR302": "host-input",
    "GR401": "host-constant",
    "GR402": "capture-divergence",
    "GR403": "scalar-dynamism",
    "GR404": "hidden-state",
    "GR405": "unsupported",
    "GR406": "not-worthwhile",
    "GR501": "launch-bound",
}

REWRITTEN = frozenset({"GR101", "GR102", "GR103", "GR202", "GR302", "GR401", "GR403", "GR404", "GR405"})
"""Codes whose findings a rewrite of the source may remove; `grape.rewrite` holds a fix for each."""

REWRITTEN_IN_LIBRARIES = frozenset({"GR202", "GR405"})
"""Those of them whose rewrite is one of the person's line, also where the cause is in a library's code."""
