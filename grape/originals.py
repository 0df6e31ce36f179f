"""Functions and objects of the standard library as they were when Grape was imported.

The person may put others in their place, which count their calls or tell another time: Grape's own work calls none of
those.
"""

from __future__ import annotations

import sys
from os import environ
from time import monotonic, perf_counter, perf_counter_ns, sleep, time_ns
from typing import Any

__all__ = ["environ", "monotonic", "numpy_generator", "perf_counter", "perf_counter_ns", "sleep", "time_ns"]


def numpy_generator() -> Any:
    """What `numpy.random` draws from, where somebody has loaded that; else None."""
    drawn = sys.modules.get("numpy.random.mtrand")
    return None if drawn is None else drawn._rand
