"""Bytes in a sentence."""

from __future__ import annotations

_UNITS = (("GB", 2**30), ("MB", 2**20), ("KB", 2**10))


def size_text(nbytes: float) -> str:
    """In the largest unit of which it is one, in powers of 1024, as an option would give it: ``1.5 GB``, ``512 B``."""
    unit, size = next(((unit, size) for unit, size in _UNITS if nbytes >= size), ("B", 1))
    value = nbytes / size
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
