"""Writes what names every finding code into the documents: the table of docs/README.md, the words of the schema.

    python -m scripts.finding_tables

A test compares them with `grape.model.CODES`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from grape.model import CODES

__all__ = ["PAGE", "SCHEMA", "page", "schema"]

_DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = _DOCS / "README.md"
SCHEMA = _DOCS / "report.schema.json"
_TABLE = re.compile(r"(?<=\| --- \| --- \| --- \| --- \|\n)(?:\|.*\n)+")


def page(text: str) -> str:
    """docs/README.md with the table of all codes, in two columns of two."""
    known = list(CODES.items())
    half = (len(known) + 1) // 2
    rows = [
        _cells(*known[at]) + (_cells(*known[at + half]) if at + half < len(known) else " | |") for at in range(half)
    ]
    return _TABLE.sub("".join(f"|{row}\n" for row in rows), text, count=1)


def _cells(code: str, name: str) -> str:
    return f" [{code}](../grape/advisor/pages/{code}.md) | {name} |"


def schema(text: str) -> str:
    """The schema of a report, in which codes and names are those that there are."""
    data: Any = json.loads(text)
    data["$defs"]["code"]["enum"] = list(CODES)
    data["$defs"]["finding"]["properties"]["name"]["enum"] = list(CODES.values())
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for path, made in ((PAGE, page), (SCHEMA, schema)):
        path.write_text(made(path.read_text(encoding="utf-8")), encoding="utf-8")
