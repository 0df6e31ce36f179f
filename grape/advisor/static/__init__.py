"""Findings from source alone: what a syntax tree shows of tensors, loops and host reads. Nothing is run or imported."""

from .findings import StaticFinding, find
from .sources import Placed, find_in_sources, reads_in_sources
from .waits import reads_by_syntax

__all__ = ["Placed", "StaticFinding", "find", "find_in_sources", "reads_by_syntax", "reads_in_sources"]
