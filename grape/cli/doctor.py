"""`grape doctor`: what works on this machine, and what is missing."""

from __future__ import annotations

import argparse


def doctor(_: argparse.Namespace) -> int:
    """Print the findings."""
    from ..doctor import doctor as examine

    print(examine().rstrip())
    return 0
