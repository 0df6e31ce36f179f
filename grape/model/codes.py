"""The finding codes: a stable contract. One rule, one file, one documentation page each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["blocker", "costly", "hint"]
Outcome = Literal["replayed", "observed", "refused"]


@dataclass(frozen=True, slots=True)
class _Known:
    """`rewrite` is the module of `grape.rewrite.fixes` that removes what such a finding is about; None where there is
    none. `in_libraries`: it changes the person's line, also where the cause is in a library's code. `once`: what it is
    about is paid in one run of a cell, and is not there in the next.
    """

    name: str
    rewrite: str | None = None
    in_libraries: bool = False
    once: bool = False


_KNOWN = {
    "GR101": _Known("host-sync", rewrite="defer_reads"),
    "GR102": _Known("data-dependent-branch", rewrite="control_flow"),
    "GR103": _Known("data-dependent-shape", rewrite="masked_writes"),
    "GR201": _Known("shape-dynamism"),
    "GR202": _Known("growing-state", rewrite="growing_state", in_libraries=True),
    "GR203": _Known("cold-shape", rewrite="cold_shape", in_libraries=True, once=True),
    "GR301": _Known("placeholder-copy"),
    "GR302": _Known("host-input", rewrite="host_input"),
    "GR303": _Known("starved-loop", rewrite="starved_loop"),
    "GR401": _Known("host-constant", rewrite="hoist_constants"),
    "GR402": _Known("capture-divergence"),
    "GR403": _Known("scalar-dynamism", rewrite="tensor_scalars"),
    "GR404": _Known("hidden-state", rewrite="python_state"),
    "GR405": _Known("unsupported", rewrite="no_grad", in_libraries=True),
    "GR406": _Known("not-worthwhile"),
    "GR501": _Known("launch-bound"),
    "GR502": _Known("serial-branches"),
    "GR601": _Known("straggler"),
}
"""A finding is known because it stands here. Its rule (`advisor/rules/`) and its page are found by the code."""

CODES: dict[str, str] = {code: known.name for code, known in _KNOWN.items()}

REWRITES: dict[str, str] = {code: known.rewrite for code, known in _KNOWN.items() if known.rewrite is not None}
"""The module of `grape.rewrite.fixes` for each code whose findings a rewrite of the source may remove."""

REWRITTEN = frozenset(REWRITES)

REWRITTEN_IN_LIBRARIES = frozenset(code for code, known in _KNOWN.items() if known.in_libraries)

ONCE = frozenset(code for code, known in _KNOWN.items() if known.once)
"""Codes whose findings tell of one run of a cell, and not of the next."""
