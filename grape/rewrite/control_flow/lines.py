"""Line numbers that survive a rewrite: each statement carries its lines in a comment that is taken out at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

_MARK = "#\u2063grape-line"
_MARKED = (cst.SimpleStatementLine, cst.BaseCompoundStatement, cst.Else)


def marker(first: int, last: int) -> cst.EmptyLine:
    return cst.EmptyLine(indent=False, comment=cst.Comment(f"{_MARK} {first} {last}"))


def marked(source: str) -> cst.Module:
    """The module of `source`, every statement with its first line and the last line of its head."""
    wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    return wrapper.module.visit(_Mark(wrapper.resolve(PositionProvider)))


class _Mark(cst.CSTTransformer):
    def __init__(self, positions: Mapping[cst.CSTNode, CodeRange]) -> None:
        super().__init__()
        self._positions = positions

    def on_visit(self, node: cst.CSTNode) -> bool:
        return not isinstance(node, (cst.SimpleStatementLine, cst.BaseExpression))  # they hold no statements

    def on_leave(self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT) -> cst.CSTNodeT:
        if isinstance(original_node, _MARKED):
            place = self._positions[original_node]
            last = place.end.line
            body = getattr(original_node, "body", None)
            if isinstance(body, cst.BaseSuite) and body.body:
                last = max(place.start.line, self._positions[body.body[0]].start.line - 1)
            # After the person's own comments, so that those stay above the first generated line.
            lines = (*original_node.leading_lines, marker(place.start.line, last))
            return updated_node.with_changes(leading_lines=lines)
        return updated_node


def lines_of(statement: object) -> tuple[int, int] | None:
    """The lines of a statement's head in the original source."""
    for line in getattr(statement, "leading_lines", ()):
        if line.comment is not None and line.comment.value.startswith(_MARK):
            first, last = line.comment.value.split()[1:]
            return int(first), int(last)
    return None


def line_of(statement: object) -> int:
    lines = lines_of(statement)
    return 0 if lines is None else lines[0]


def without_markers(code: str) -> tuple[str, tuple[int, ...]]:
    """The source without markers, and the original line of each of its lines.

    A line that continues a statement counts on from it; a generated line has the line of the construct it came from.
    """
    kept: list[str] = []
    origins: list[int] = []
    line, last, ahead = 1, 1, False
    for text in code.split("\n"):
        if text.lstrip().startswith(_MARK):
            first, end = (int(part) for part in text.split()[1:])
            line, last, ahead = first, end, True
            continue
        if not ahead and line < last:
            line += 1
        ahead = False
        kept.append(text)
        origins.append(line)
    return "\n".join(kept), _comments_first(kept, origins)


def _comments_first(kept: Sequence[str], origins: list[int]) -> tuple[int, ...]:
    """Empty lines and comments above a statement count down from it."""
    for index in range(len(kept) - 2, -1, -1):
        text = kept[index].strip()
        if not text or text.startswith("#"):
            origins[index] = max(1, origins[index + 1] - 1)
    return tuple(origins)
