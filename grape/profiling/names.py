"""Names of kernels, short enough to show."""

from __future__ import annotations

import re
from collections.abc import Callable

_ELLIPSIS = "..."
_QUALIFIER = re.compile(r"\b(?:[A-Za-z_]\w*::)+")


def short_name(name: str, limit: int = 80, demangle: Callable[[str], str] | None = None) -> str:
    """`name` as it is where it has at most `limit` characters, else the same name with less detail.

    Detail goes in this order: result and parameter list, namespaces, template arguments from the innermost out, the
    end. `demangle` turns a mangled C++ name into a readable one.
    """
    if demangle is not None and name.startswith("_Z"):
        name = demangle(name)
    if len(name) <= limit:
        return name
    text = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    text = _QUALIFIER.sub("", _without_parameters(text.removeprefix("void ")))
    depth = 4
    while len(text) > limit and depth > 0:
        depth -= 1
        text = _collapsed(text, depth)
    return text if len(text) <= limit else text[: limit - len(_ELLIPSIS)] + _ELLIPSIS


def _without_parameters(text: str) -> str:
    """Cut the parameter list at the end of a function's name."""
    if not text.endswith(")"):
        return text
    depth = 0
    for index in range(len(text) - 1, 0, -1):
        depth += (text[index] == ")") - (text[index] == "(")
        if depth == 0:
            return text[:index]
    return text


def _collapsed(text: str, depth: int) -> str:
    """Replace template arguments nested deeper than `depth` by an ellipsis."""
    kept: list[str] = []
    level = 0
    for index, character in enumerate(text):
        if character == "<":
            level += 1
            if level == depth + 1:
                kept.append("<" + _ELLIPSIS)
        elif character == ">" and text[index - 1] != "-" and level > 0:
            level -= 1
            if level == depth:
                kept.append(">")
                continue
        if level <= depth:
            kept.append(character)
    return "".join(kept)
