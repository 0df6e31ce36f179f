"""Lines for a terminal: text in spans of one style, wrapped at words to a width of columns, and a table.

A report is shown after every cell, so this does little and imports nothing.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Cell", "Lines", "Span"]

Span = tuple[str, str]
"""Text, and the name of its style or ""."""

_STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "bold red": "1;31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "bright_black": "90",
}
_WORD = re.compile(r"\s*\S+\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Of a table. `lines` are wrapped where the column is narrower."""

    lines: tuple[str, ...]
    style: str = ""
    right: bool = False


class Lines:
    """What is printed, line after line. `color` adds ANSI styles."""

    def __init__(self, width: int, *, color: bool) -> None:
        self.width = width
        self._color = color
        self._lines: list[str] = []

    def text(self) -> str:
        """Without spaces at the ends of lines and without empty lines at the end."""
        return "\n".join(line.rstrip() for line in self._lines).rstrip("\n") + "\n"

    def print(self, *spans: Span | str, style: str = "", indent: int = 0, wrap: bool = True) -> None:
        """One paragraph; `style` is that of spans which are plain text. Nothing is an empty line."""
        parts = [(span, style) if isinstance(span, str) else span for span in spans]
        parts = [(text.expandtabs(8), name) for text, name in parts]
        whole = "".join(text for text, _ in parts)
        for start, end in _broken(whole, self.width - indent if wrap else None):
            self._lines.append(" " * indent + self._styled(parts, start, end))

    def table(self, header: Sequence[Cell], rows: Sequence[Sequence[Cell]], widths: Sequence[int]) -> None:
        """Columns of `widths`, one apart, with a rule below the header."""
        self._row(header, widths)
        self._lines.append("─" * (sum(widths) + len(widths) - 1))
        for row in rows:
            self._row(row, widths)

    def _row(self, row: Sequence[Cell], widths: Sequence[int]) -> None:
        columns = [
            [line[start:end] for line in cell.lines for start, end in _broken(line, width)]
            for cell, width in zip(row, widths, strict=True)
        ]
        for number in range(max(map(len, columns))):
            shown = []
            for cell, width, lines in zip(row, widths, columns, strict=True):
                text = lines[number] if number < len(lines) else ""
                space = " " * (width - _columns(text))
                styled = self._styled([(text, cell.style)], 0, len(text))
                shown.append(space + styled if cell.right else styled + space)
            self._lines.append(" ".join(shown))

    def _styled(self, spans: Sequence[Span], start: int, end: int) -> str:
        """The part of the spans between two places of their whole text."""
        made, at = [], 0
        for text, style in spans:
            part = text[max(0, start - at) : max(0, end - at)]
            at += len(text)
            if part and style and self._color:
                part = f"\x1b[{_STYLES[style]}m{part}\x1b[0m"
            made.append(part)
        return "".join(made)


def _broken(text: str, width: int | None) -> Iterator[tuple[int, int]]:
    """Where lines begin and end: at line ends, between words, and within a word that is longer than a line."""
    first = 0
    for line in text.split("\n"):
        if width is None or _columns(line) <= width:
            yield first, first + len(line)
        else:
            starts = [0, *_breaks(line, max(1, width)), len(line)]
            for start, end in itertools.pairwise(starts):
                yield first + start, first + start + len(line[start:end].rstrip())
        first += len(line) + 1


def _breaks(line: str, width: int) -> Iterator[int]:
    used = 0
    for match in _WORD.finditer(line):
        word, start = match[0], match.start()
        needed = _columns(word.rstrip())
        if needed <= width - used:
            used += _columns(word)
            continue
        if start:
            yield start
        used = _columns(word)
        if needed <= width:
            continue
        used = 0
        for index, letter in enumerate(word, start=start):
            size = _columns(letter)
            if used + size > width:
                yield index
                used = 0
            used += size


def _columns(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )
