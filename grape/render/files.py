"""Files appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ..errors import UsageError
from .units import one_line

__all__ = ["write_text"]


def write_text(path: str | os.PathLike[str], text: str, what: str) -> None:
    """Write `text` to `path` (UTF-8) through a temporary file beside it.

    `what` names the content in the message of the `UsageError` that is raised where `path` cannot be written.
    """
    shown = os.fspath(path)
    try:
        target = Path(shown).expanduser()
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            part.write_text(text, encoding="utf-8")
            os.replace(part, target)
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
    except (OSError, ValueError, RuntimeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        place = one_line(str(shown), 200)
        raise UsageError(f"cannot write {what} to '{place}': {why}; name a file in a folder that exists") from None
