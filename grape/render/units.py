"""Numbers as people read them. Text, HTML and the verdict share these, so that their figures agree."""

from __future__ import annotations

import math
import re

_TIME_UNITS = (("s", 1e-3, 1e3), ("ms", 1.0, 0.1), ("us", 1e3, 1e-4), ("ns", 1e6, 0.0))
"""(unit, units per millisecond, smallest milliseconds shown in it)."""

_CODE = re.compile(r"`([^`\n]+)`")
_STAMP = re.compile(r"^((?:---|\+\+\+) [^\t\n]*)\t[^\n]*$", re.MULTILINE)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """`text` without what a terminal or a page would obey: control characters, bidi overrides, lone surrogates."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def one_line(text: str, limit: int = 120) -> str:
    """The first line of `text`, cleaned, without its full stop, at most `limit` characters."""
    line = clean(text).strip().split("\n", 1)[0].strip().removesuffix(".")
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"


def code_spans(text: str) -> list[tuple[str, bool]]:
    """The parts of a sentence, each with whether it is code, which stands between backticks."""
    return [(part, bool(index % 2)) for index, part in enumerate(_CODE.split(text)) if part]


def shown_diff(diff: str) -> str:
    """A difference for a person to read: without the digests that name its sources to ``grape apply``."""
    return _STAMP.sub(r"\1", diff, count=2)


def changed_lines(diff: str) -> tuple[str, ...]:
    """What a unified diff changes, for where the code around it is shown: with the lines between changes, without
    those before and after them; ``...`` stands between hunks.
    """
    hunks: list[list[str]] = []
    for line in clean(diff).splitlines():
        if line.startswith("@@"):
            hunks.append([])
        elif hunks:
            hunks[-1].append(line)
    shown: list[str] = []
    for hunk in hunks:
        changes = [index for index, line in enumerate(hunk) if line[:1] in ("+", "-")]
        shown += [*(["..."] if shown else []), *(hunk[changes[0] : changes[-1] + 1] if changes else [])]
    return tuple(shown)


def three(value: float) -> str:
    """Three significant digits, never in exponent form: ``4.68``, ``0.946``, ``12,300``; ``?`` where not finite."""
    if not math.isfinite(value):
        return "?"
    value = float(f"{value:.3g}")
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 100:
        return f"{value:,.0f}"
    decimals = 2 - math.floor(math.log10(size))
    return f"{value:.{min(decimals, 9)}f}"


def _time_unit(ms: float) -> tuple[str, float]:
    for unit, factor, smallest in _TIME_UNITS:
        if abs(ms) >= smallest:
            return unit, factor
    return "ms", 1.0


def duration(ms: float | None) -> str:
    """Milliseconds as ``1.23 s``, ``4.68 ms``, ``12.0 us`` or ``90.0 ns``; ``-`` where there is none."""
    if ms is None:
        return "-"
    unit, factor = _time_unit(ms) if ms else ("ms", 1.0)
    return f"{three(ms * factor)} {unit}"


def pair(before_ms: float, after_ms: float, suffix: str = "") -> str:
    """Two times in one unit, that of the longer: ``4.68 -> 1.14 ms``."""
    unit, factor = _time_unit(max(before_ms, after_ms)) if before_ms or after_ms else ("ms", 1.0)
    return f"{three(before_ms * factor)} -> {three(after_ms * factor)} {unit}{suffix}"


def waited(ms: float) -> str:
    """A time that a person waits: ``0.02 s``, ``1.25 s``, ``3.1 ms``."""
    if ms >= 10:
        return f"{ms / 1e3:,.2f} s" if ms < 1e4 else f"{ms / 1e3:,.1f} s"
    return f"{ms:.2g} ms"


def waited_pair(before_ms: float, after_ms: float) -> str:
    """Two times that a person waits, in one unit: ``0.86 -> 0.30 s``, ``86 -> 30 ms``."""
    longer = max(before_ms, after_ms)
    if longer >= 100:
        decimals = 2 if longer < 1e4 else 1
        return f"{before_ms / 1e3:,.{decimals}f} -> {after_ms / 1e3:,.{decimals}f} s"
    return f"{before_ms:.0f} -> {after_ms:.0f} ms" if longer >= 10 else f"{before_ms:.2g} -> {after_ms:.2g} ms"


def ratio(value: float | None) -> str:
    """``4.1x``; ``-`` where nothing is claimed."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "?"
    if 0 < value < 0.1:
        return "<0.1x"
    return f"{value:,.0f}x" if value >= 100 else f"{value:.1f}x"


def percent(share: float | None) -> str:
    """A share in [0, 1] as ``97%``; what is not quite none or all of it is ``<1%`` or ``>99%``."""
    if share is None or not math.isfinite(share):
        return "-"
    if 0 < share < 0.01:
        return "<1%"
    if 0.995 <= share < 1:
        return ">99%"
    return f"{share * 100:.0f}%"


def nbytes(size: int | float) -> str:
    """Bytes in powers of 1024: ``512 B``, ``1.16 MB``."""
    if abs(size) < 1024:
        return f"{size:,.0f} B"
    value, unit = float(size) / 1024, "KB"
    for larger in ("MB", "GB", "TB"):
        if abs(value) < 1023.5:
            break
        value, unit = value / 1024, larger
    return f"{three(value)} {unit}"


def count(value: int | float) -> str:
    """``1,019``; up to one decimal for a mean."""
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.1f}" if math.isfinite(value) else "?"
    return f"{int(value):,}"


def plural(number: int | float, noun: str) -> str:
    """``1 blocker``, ``2 blockers``."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"
