"""Files appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from ..errors import UsageError
from .units import one_line


def check_writable(file: str, what: str = "") -> None:
    """Find out before a long run that a file cannot be written, without touching it. Raises `UsageError`.

    `what` names its content in the message, as in `write_text`.
    """
    shown = f"cannot write {what} to '{one_line(file, 200)}'" if what else f"cannot write '{file}'"
    try:
        target = Path(file).expanduser()
        if target.is_dir():
            raise UsageError(f"{shown}: it is a folder; name a file in it")
        if not target.parent.is_dir():
            raise UsageError(f"{shown}: there is no folder '{target.parent}'; create it first")
        if not os.access(target.parent, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
            raise UsageError(f"{shown}: permission denied; name a file in a folder of your own")
    except (OSError, ValueError, RuntimeError) as error:  # a name too long, a null byte, no home directory
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UsageError(f"{shown}: {why}; name a file in a folder that exists") from None


def write_text(path: str | os.PathLike[str], text: str, what: str) -> None:
    """Write `text` to `path` (UTF-8); see `write_bytes`."""
    _write(path, lambda: text.encode("utf-8"), what)


def write_bytes(path: str | os.PathLike[str], content: bytes, what: str) -> None:
    """Write `content` to `path` through a temporary file beside it.

    `what` names the content in the message of the `UsageError` that is raised where `path` cannot be written.
    """
    _write(path, lambda: content, what)


def _write(path: str | os.PathLike[str], make: Callable[[], bytes], what: str) -> None:
    shown = os.fspath(path)
    try:
        target = Path(shown).expanduser()
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            part.write_bytes(make())
            os.replace(part, target)
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
    except (OSError, ValueError, RuntimeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        place = one_line(str(shown), 200)
        raise UsageError(f"cannot write {what} to '{place}': {why}; name a file in a folder that exists") from None
