"""The C++ of operator streams, and of what regions compare at each call: built for the installed torch at first use,
kept in torch's cache of extensions.
"""

from __future__ import annotations

from .build import Unavailable, built, load, missing, ready, said, start

__all__ = ["Unavailable", "built", "load", "missing", "ready", "said", "start"]
