"""Compressed capture: the graphs of many shapes in the memory of few.

Pure parts: `codec` (a shape's parameters as differences), `classes` (who can share), `residency` (who stays). Over a
backend's executables: `resident_executables` (those on the device), `admission` (of a new shape), `switching` (to a
known one), `working_set` (what is kept for that), `store` (all of it). `stored` is a graph as an entry sees it.
"""

from .store import ExecutableStore
from .stored import StoredGraph

__all__ = ["ExecutableStore", "StoredGraph"]
