from __future__ import annotations

import math

import pytest

from grape.render import units
from grape.render.units import changed_lines, code_spans, shown_diff
from grape.rewrite import unified_diff


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "-"),
        (0, "0 ms"),
        (4.68, "4.68 ms"),
        (0.946, "0.946 ms"),
        (9.996, "10.0 ms"),
        (123.4, "123 ms"),
        (1000, "1.00 s"),
        (86_400_000, "86,400 s"),
        (0.012, "12.0 us"),
        (9e-5, "90.0 ns"),
        (1e-12, "0.00000100 ns"),
        (math.inf, "? s"),
        (math.nan, "? ms"),
    ],
)
def test_duration(ms: float | None, text: str) -> None:
    assert units.duration(ms) == text


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (4.68, 1.14, "4.68 -> 1.14 ms"),
        (1.14, 4.68, "1.14 -> 4.68 ms"),
        (12_000, 0.9, "12.0 -> 0.000900 s"),
        (0.02, 0.01, "20.0 -> 10.0 us"),
        (0.0, 0.0, "0 -> 0 ms"),
    ],
)
def test_pair_has_one_unit(before: float, after: float, text: str) -> None:
    assert units.pair(before, after) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (4.105, "4.1x"),
        (1.0, "1.0x"),
        (0.04, "<0.1x"),
        (123.4, "123x"),
        (1e6, "1,000,000x"),
        (math.inf, "?"),
    ],
)
def test_ratio(value: float | None, text: str) -> None:
    assert units.ratio(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, "-"), (0.0, "0%"), (0.004, "<1%"), (0.154, "15%"), (0.97, "97%"), (0.996, ">99%"), (1.0, "100%")],
)
def test_percent(share: float | None, text: str) -> None:
    assert units.percent(share) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KB"),
        (1_216_348, "1.16 MB"),
        (1000 * 2**20, "1,000 MB"),
        (197 * 2**30, "197 GB"),
        (2**60, "1,050,000 TB"),
    ],
)
def test_nbytes(size: int, text: str) -> None:
    assert units.nbytes(size) == text


@pytest.mark.parametrize(("value", "text"), [(1019, "1,019"), (269.0, "269"), (269.33, "269.3"), (math.nan, "?")])
def test_count(value: float, text: str) -> None:
    assert units.count(value) == text


def test_clean_removes_what_a_terminal_or_page_would_obey() -> None:
    dirty = "a\x1b[31mb\x07\u202ec\ud800d\te\nf"
    assert units.clean(dirty) == "a\ufffd[31mb\ufffd\ufffdc\ufffdd\te\nf"


def test_one_line_cuts_at_the_first_line_and_the_limit() -> None:
    assert units.one_line("  first.\nsecond") == "first"
    assert units.one_line("x" * 50, 10) == "x" * 9 + "\u2026"


def test_a_difference_is_shown_without_its_digests() -> None:
    diff = unified_diff("x = 1\n", "x = '--- a\\tb'\n", "In[4]")
    assert "sha256:" in diff
    assert shown_diff(diff) == "--- In[4]\n+++ In[4]\n@@ -1 +1 @@\n-x = 1\n+x = '--- a\\tb'\n"
    assert shown_diff("no difference\n") == "no difference\n"


def test_changes_are_shown_without_what_stands_before_and_after_them() -> None:
    old = "".join(f"line_{n}()\n" for n in range(40))
    new = old.replace("line_5()", "five()").replace("line_7()\n", "").replace("line_30()", "thirty()")
    assert changed_lines(unified_diff(old, new, "In[4]")) == (
        *("-line_5()", "+five()", " line_6()", "-line_7()"),
        "...",
        *("-line_30()", "+thirty()"),
    )
    assert changed_lines("no difference\n") == ()


def test_what_stands_between_backticks_is_code() -> None:
    assert code_spans("read `x.item()` in `f`, or ` alone") == [
        ("read ", False),
        ("x.item()", True),
        (" in ", False),
        ("f", True),
        (", or ` alone", False),
    ]
