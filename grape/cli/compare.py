"""`grape compare`: what changed between two reports that ``--json`` wrote."""

from __future__ import annotations

import argparse

from .files import read_json


def compare(arguments: argparse.Namespace) -> int:
    """Print the comparison. Raises `UsageError` for a file that holds no report."""
    from ..render.comparison import comparison_text, damaged, reports_of

    files = (arguments.first, arguments.second)
    first, second = (reports_of(read_json(file), file) for file in files)
    for reports, file in zip((first, second), files, strict=True):
        with damaged(file):
            comparison_text(reports, reports)
    print(comparison_text(first, second))
    return 0
