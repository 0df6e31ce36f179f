"""The evaluation: every workload against every peer, each pair in a process of its own. See `__main__.py`."""

from __future__ import annotations

import sys
from pathlib import Path

_SCRIPTS = str(Path(__file__).parents[1])
if _SCRIPTS not in sys.path:  # the scripts beside this package import each other by their bare names
    sys.path.insert(0, _SCRIPTS)
