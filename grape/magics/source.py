"""Where the ``%%grape`` line stands in a cell, and the cell with that line turned into a comment.

Pure functions of text. What a person typed decides, every time anew: front ends transform a cell also to ask
whether it is complete or asynchronous, so that nothing may be remembered from one transformation to the next.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from IPython.core.inputtransformer2 import cell_magic, leading_indent

__all__ = ["MagicLine", "comment_out", "find_magic", "wants_help"]

_MAGIC = re.compile(r"(?P<indent>[ \t]*)%%grape(?:[ \t]+(?P<options>.*))?$", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class MagicLine:
    """The ``%%grape`` line of a cell: `index` counts lines from 0, `options` is the text behind ``%%grape``."""

    index: int
    indent: str
    options: str
    body_is_blank: bool

    @property
    def is_help_over_code(self) -> bool:
        """``%%grape --help`` above code stays a cell magic: it prints the help and runs nothing."""
        return wants_help(self.options) and not self.body_is_blank


def wants_help(options: str) -> bool:
    return any(word in ("-h", "--help") for word in options.split())


def find_magic(lines: Sequence[str]) -> MagicLine | None:
    """The ``%%grape`` line, where it is the first line that is not blank; None for any other cell.

    ``%%grape?`` asks for help and is no such line; nor is ``%%grape`` inside a string further down.
    """
    for index, line in enumerate(lines):
        if line and not line.isspace():
            match = _MAGIC.match(line.rstrip())
            if match is None:
                return None
            return MagicLine(
                index=index,
                indent=match["indent"],
                options=(match["options"] or "").strip(),
                body_is_blank=all(not rest.strip() for rest in lines[index + 1 :]),
            )
    return None


def comment_out(lines: list[str]) -> list[str]:
    """`lines` (with their line ends) with the ``%%grape`` line as a comment; any other cell as it is.

    Blank lines above it become comments too, since IPython would drop them and so shift every line number. Another
    cell magic directly below ``%%grape`` becomes the call that IPython would have made of it.
    """
    magic = find_magic(lines)
    if magic is None or magic.is_help_over_code:
        return lines
    above = [f"{magic.indent}#\n" for _ in range(magic.index)]
    typed = lines[magic.index]
    comment = f"{magic.indent}# {typed[len(magic.indent) :]}"
    return [*above, comment, *_inner_magic(lines[magic.index + 1 :])]


def _inner_magic(body: list[str]) -> list[str]:
    start = next((i for i, line in enumerate(body) if line.strip()), len(body))
    rest = body[start:]
    if not rest or not rest[0].lstrip().startswith("%%"):
        return body
    return [*body[:start], *cell_magic(leading_indent(rest))]
