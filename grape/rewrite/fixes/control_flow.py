"""GR102: decisions that a tensor takes move onto the device; see `grape.rewrite.control_flow`."""

from __future__ import annotations

from ...model import Finding
from ..code import Code
from ..control_flow import RewrittenFlow, rewrite_control_flow
from ..result import Declined


def fix(code: Code, finding: Finding) -> str | Declined:
    assert finding.at is not None
    line, text = finding.at.line, code.module.code
    if finding.region is None:
        # Only what is captured gains: eagerly the device still has to tell the CPU which way to go.
        return Declined(why="it is outside of every region; put the loop's body into a function", line=line)
    made = rewrite_control_flow(text, filename=finding.at.file, only_lines=(line,))
    if not isinstance(made, RewrittenFlow):
        return Declined(why=made.why, line=made.line)
    if made.source != text:
        return made.source
    left = next((left for left in made.left if left.line == line), None)
    return Declined(why=left.why if left is not None else "no condition that can be rewritten stands on it", line=line)
