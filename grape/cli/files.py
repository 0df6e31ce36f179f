"""JSON files that a person names, and what is said where they are something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import UsageError

__all__ = ["parse_json", "read_json", "read_text"]


def read_text(file: str) -> str:
    """The text of a file, with or without a byte order mark. Raises `UsageError`."""
    path = Path(file).expanduser()
    try:
        return path.read_text(encoding="utf-8-sig")
    except IsADirectoryError:
        raise UsageError(f"'{file}' is a folder; name a file in it") from None
    except OSError as error:
        raise UsageError(f"cannot read '{file}': {error.strerror or error}; check the path") from None
    except UnicodeDecodeError:
        raise UsageError(f"'{file}' is not JSON: it is not UTF-8 text") from None
    except ValueError as error:  # a null byte in the name
        raise UsageError(f"cannot read '{file}': {error}; check the path") from None


def parse_json(text: str, file: str) -> Any:
    """The value of JSON text. Raises `UsageError` that says what is wrong with `file`."""
    if not text.strip():
        raise UsageError(f"'{file}' is empty")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        why = "it ends in the middle" if cut else " ".join(str(error).split())
        raise UsageError(f"'{file}' is not JSON: {why}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"'{file}' is not JSON: {' '.join(str(error).split())[:120]}") from None


def read_json(file: str) -> Any:
    """The value in a JSON file. Raises `UsageError`."""
    return parse_json(read_text(file), file)
