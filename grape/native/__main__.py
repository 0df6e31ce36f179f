"""Builds the extension, or says in one line why there is none."""

import sys

from . import Unavailable, load

result = load()
sys.exit(result.reason if isinstance(result, Unavailable) else 0)
