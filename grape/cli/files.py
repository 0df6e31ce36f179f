"""Files that a person names, JSON and scripts, and what is said where they are something else."""

from __future__ import annotations

import io
import json
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptText:
    """The source of a script, and how its file has it."""

    text: str
    encoding: str
    newline: str

    @classmethod
    def read(cls, path: Path) -> ScriptText:
        """Raises `UsageError` for a file that cannot be read, or is no Python text."""
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read '{path}': {error.strerror or error}; check the path") from None
        return cls.of(raw, str(path))

    @classmethod
    def of(cls, raw: bytes, name: str) -> ScriptText:
        """Of what a file holds. Raises `UsageError` where that is no Python text."""
        try:
            encoding = tokenize.detect_encoding(io.BytesIO(raw).readline)[0]
            text = raw.decode(encoding)
        except (SyntaxError, ValueError) as error:
            raise UsageError(f"'{name}' is no Python file: {error}") from None
        newline = "\r\n" if "\r\n" in text else "\n"
        return cls(text=text.replace("\r\n", "\n"), encoding=encoding, newline=newline)

    def encoded(self, text: str) -> bytes:
        """Another text as this file would have it."""
        return text.replace("\n", self.newline).encode(self.encoding)


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


def parse_json(text: str, file: str) -> object:
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
