"""Comparisons that Grape's extension does, where that is there: each a function that says yes only where the comparison
in Python, beside the caller, does. Where it says no, and it always does without the extension, that one decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ... import native

Check = Callable[[], bool]


def never() -> bool:
    """The check of what only Python can compare."""
    return False


def mean(items: Sequence[tuple[object, str, object]], absent: object) -> Check:
    """In each dict the name means that value, or nothing where it is `absent`."""
    extension = native.built()
    if extension is None or any(type(names) is not dict for names, _, _ in items):
        return never
    return partial(extension.mean, *_columns(items), absent)


def have(attributes: Sequence[tuple[object, str, object]]) -> Check:
    """Each object has that value under the name."""
    extension = native.built()
    return never if extension is None else partial(extension.have, *_columns(attributes))


def are_of(objects: tuple[object, ...], classes: tuple[type, ...], dicts: tuple[object, ...]) -> Check:
    """Each object is of the class, and that dict, unless it is None, holds its attributes."""
    extension = native.built()
    return never if extension is None else partial(extension.are_of, objects, classes, dicts)


def _columns(rows: Sequence[tuple[object, str, object]]) -> tuple[tuple[object, ...], ...]:
    return tuple([tuple([row[number] for row in rows]) for number in range(3)])


def held_by(check: Check) -> list[object]:
    """Every reference that a check of `mean` or `have` holds."""
    columns = check.args[:3] if isinstance(check, partial) else ()
    return [one for column in columns for one in column]
