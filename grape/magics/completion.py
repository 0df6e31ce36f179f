"""Tab completion of ``%%grape`` options and ``%grape`` commands."""

from __future__ import annotations

from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher

from ..model import CODES
from ..options import ENGINES, OPTIONS
from .commands import COMMANDS, NUMBERS
from .source import find_magic


def complete_line(line: str, *, starts_cell: bool) -> list[str]:
    """Words that may stand where `line` (up to the cursor) ends; empty where nothing of Grape does.

    `starts_cell` says whether no code stands above the line: only there ``%%grape`` is a magic.
    """
    words = line.lstrip().split(" ")
    head, before, token = words[0], words[1:-1], words[-1]
    before = [word for word in before if word]
    if len(words) < 2:
        return []
    if head == "%%grape" and starts_cell:
        return _options(before, token)
    if head == "%grape":
        return _commands(before, token)
    return []


def _options(before: list[str], token: str) -> list[str]:
    takes_value = {flag for option in OPTIONS if option.metavar for flag in option.flags}
    if before and before[-1] in takes_value:
        return [name for name in ENGINES if before[-1] == "--engine" and name.startswith(token)]
    unused = [option for option in OPTIONS if not set(option.flags) & set(before)]
    return [flag for option in unused for flag in option.flags if flag.startswith(token)]


def _commands(before: list[str], token: str) -> list[str]:
    if not before:
        return [name for name in COMMANDS if name.startswith(token)]
    if before == ["explain"]:
        names = [name for name in CODES.values() if token and name.startswith(token.lower())]
        return [code for code in CODES if code.startswith(token.upper())] + names
    numbers = NUMBERS.get(before[0])
    if numbers is not None and len(before) <= COMMANDS[before[0]].most:
        return [str(number) for number in numbers() if str(number).startswith(token)]
    return []


@context_matcher()  # type: ignore[untyped-decorator]
def grape_matcher(context: CompletionContext) -> SimpleMatcherResult:
    above = context.full_text.split("\n")[: context.cursor_line]
    line = context.text_until_cursor
    found = complete_line(line, starts_cell=find_magic([*above, line]) is not None)
    # The fragment to replace is the whole word: the front end's own tokens split at some characters of a word.
    fragment = line.rsplit(" ", 1)[-1]
    result: Any = {
        "completions": [SimpleCompletion(text=text, type="param") for text in found],
        "matched_fragment": fragment,
        "suppress": bool(found),
    }
    return result  # type: ignore[no-any-return]
