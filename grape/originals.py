"""Functions of the standard library as they were when Grape was imported.

The person may put others in their place, which count their calls or tell another time: Grape's own work calls none of
those.
"""

from __future__ import annotations

from time import monotonic, perf_counter, perf_counter_ns, sleep, time_ns

__all__ = ["monotonic", "perf_counter", "perf_counter_ns", "sleep", "time_ns"]
