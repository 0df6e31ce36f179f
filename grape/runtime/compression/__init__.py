"""Compressed capture: the graphs of many shapes in the memory of few.

Pure parts: `codec` (a shape's parameters as differences), `classes` (who can share), `residency` (who stays). `store`
puts them together over a backend's executables.
"""

from .account import Estimate, StoreAccount
from .codec import Base, Record, RecordError
from .residency import Limits
from .store import Admitted, ExecutableStore, Launched, NotAdmitted, Unavailable

__all__ = [
    "Admitted",
    "Base",
    "Estimate",
    "ExecutableStore",
    "Launched",
    "Limits",
    "NotAdmitted",
    "Record",
    "RecordError",
    "StoreAccount",
    "Unavailable",
]
