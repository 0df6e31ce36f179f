"""`grape compare`: what changed between two reports that ``--json`` wrote."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError

__all__ = ["compare"]


def compare(arguments: argparse.Namespace) -> int:
    """Print the comparison. Raises `UsageError` for a file that holds no report."""
    from ..render.comparison import comparison_text

    print(comparison_text(_read(arguments.first), _read(arguments.second)))
    return 0


def _read(file: str) -> tuple[Mapping[str, Any], ...]:
    from ..render.comparison import reports_of

    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read '{file}': {error.strerror or error}; check the path") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"'{file}' is no JSON: {' '.join(str(error).split())[:120]}") from None
    return reports_of(content, file)
