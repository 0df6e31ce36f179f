"""Operator streams: operators that repeat are matched with what was recorded and issued by segments. Internal."""

from .arrivals import Arrivals
from .counts import Evidence, Settings
from .first_use import own_device, unused, when_used
from .keeper import Building, shared
from .session import Stream, open_stream

__all__ = [
    "Arrivals",
    "Building",
    "Evidence",
    "Settings",
    "Stream",
    "open_stream",
    "own_device",
    "shared",
    "unused",
    "when_used",
]
