"""`grape explain`: the documentation page of a finding code."""

from __future__ import annotations

import argparse


def explain(arguments: argparse.Namespace) -> int:
    """Print the page. Raises `UsageError` for an unknown code."""
    from ..advisor import explain as page

    print(page(arguments.code).rstrip())
    return 0
