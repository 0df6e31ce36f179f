"""Lines for a terminal."""

from __future__ import annotations

import pytest

from grape.render.layout import Cell, Lines


def printed(width: int, *spans: object, **how: object) -> list[str]:
    lines = Lines(width, color=False)
    lines.print(*spans, **how)  # type: ignore[arg-type]
    return lines.text().rstrip("\n").split("\n")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three", ["one two", "three"]),
        ("exactly 8", ["exactly", "8"]),
        ("abcdefghijklmnopq rs", ["abcdefgh", "ijklmnop", "q rs"]),
        ("ab abcdefghij", ["ab", "abcdefgh", "ij"]),
        ("two  spaces", ["two", "spaces"]),
        ("a\nb", ["a", "b"]),
        ("\u65e5\u672c\u8a9e\u6587\u5b57", ["\u65e5\u672c\u8a9e\u6587", "\u5b57"]),
        ("e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301", ["e\u0301" * 8]),
    ],
)
def test_lines_break_between_words_and_in_long_ones(text: str, lines: list[str]) -> None:
    assert printed(8, text) == lines


def test_indented_and_unbroken() -> None:
    assert printed(8, "one two three", indent=2) == ["  one", "  two", "  three"]
    assert printed(8, "one two three", wrap=False) == ["one two three"]


def test_styles_are_kept_where_a_line_breaks() -> None:
    lines = Lines(8, color=True)
    lines.print(("red words", "red"), " plain")
    assert lines.text() == "\x1b[31mred\x1b[0m\n\x1b[31mwords\x1b[0m\nplain\n"


def test_a_table_has_a_rule_and_rows_of_several_lines() -> None:
    lines = Lines(40, color=False)
    rows = [
        [Cell(lines=("first", "  below")), Cell(lines=("12",), right=True)],
        [Cell(lines=("b",)), Cell(lines=("longer words",))],
    ]
    lines.table([Cell(lines=("name",)), Cell(lines=("count",), right=True)], rows, [8, 6])
    assert lines.text().splitlines() == [
        "name      count",
        "\u2500" * 15,
        "first        12",
        "  below",
        "b        longer",
        "         words",
    ]
