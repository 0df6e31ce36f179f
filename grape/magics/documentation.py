"""The words behind ``%%grape?``, ``%grape?`` and ``--help``, made from the tables of options and of commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..options import OPTIONS

_CELL_HEAD = """\
%%grape [options] on the first line of a cell: run the cell once, as without it, and report.

Grape looks on while the cell runs, finds what makes the GPU wait, puts CUDA graphs in the place of what is
called again and again, checks that the results are the same bits, and shows before and after.
"""

_CELL_TAIL = """\
Examples:
  %%grape                             observe, apply, verify, report
  %%grape --profile                   observe and advise; apply nothing
  %%grape -o report --no-widget       keep the report under the name 'report'
  %%grape --memory-budget 2GB --json report.json

'import grape; print(grape.last)' shows the whole report. '%grape undo' takes back what was applied; '%grape?' lists the
other commands.
Below another cell magic (%%time) it works too; top-level await then does not, and errors show the magics' frames."""

_LINE_HEAD = """\
%grape COMMAND: look at what Grape found and did, keep it, take it back. %%grape on the first line of a cell runs it.
%grape model(x): run one line under Grape, as a cell of that line with %%grape above it.
"""

_LINE_TAIL = """\
Examples:
  %grape status
  %grape loss = step(batch)
  %grape undo 2
  %grape save report.html
  %grape explain GR101"""


class Page(str):
    """Text that is Markdown."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One row of the table. `argument` is "" for none, ``[N]`` for an optional and ``FILE`` for a required one, ``A B``
    for two. `run` takes as many.
    """

    name: str
    argument: str
    help: str
    run: Callable[..., str]
    takes_code: bool = False
    """Its argument is the rest of the line, as it is."""

    @property
    def most(self) -> int:
        """How many arguments it takes."""
        return len(self.argument.split())

    @property
    def least(self) -> int:
        """How many it needs."""
        return sum(not word.startswith("[") for word in self.argument.split())


def _table(rows: Iterable[tuple[str, str]]) -> str:
    rows = list(rows)
    width = max(len(left) for left, _ in rows)
    return "\n".join(f"  {left:<{width}}  {right}" for left, right in rows)


def cell_help() -> str:
    options = _table(
        (", ".join(option.flags) + (f" {option.metavar}" if option.metavar else ""), option.help) for option in OPTIONS
    )
    return f"{_CELL_HEAD}\nOptions:\n{options}\n\n{_CELL_TAIL}"


def line_help(commands: Iterable[Command]) -> str:
    listed = _table(
        (command.name + (f" {command.argument}" if command.argument else ""), command.help) for command in commands
    )
    return f"{_LINE_HEAD}\nCommands:\n{listed}\n\n{_LINE_TAIL}"
