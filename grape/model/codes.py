"""The finding codes: a stable contract. One rule, one file, one documentation page each."""

from __future__ import annotations

from typing import Literal

__all__ = ["CODES", "Outcome", "Severity"]

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
