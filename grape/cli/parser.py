"""The arguments of every `grape` command. Standard library only."""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Mapping, Sequence
from typing import NoReturn

from .. import __version__
from ..errors import UsageError
from ..options import OPTIONS, parse_options

_EXIT_CODES = """\
exit codes:
  0    done
  1    a cell of the notebook raised or made no report, or --fail-on found something
       (a script ends with the code that it ends with by itself)
  2    unknown command, option, cell or finding code; a file that cannot be read or written
  3    the notebook's kernel could not be started, has no Grape, died, or a cell ran into --timeout
  4    a rewrite that cannot be applied, as when its cell was edited since the report
  130  interrupted

An error is one line on stderr; results go to stdout, progress to stderr.
"""

_RUN = """\
Run a script under Grape, or execute a notebook, some of its cells under %%grape, and print a report of each.

A script (.py) runs once, as `python SCRIPT.py ARGS` would run it; what follows its name is its own, so that options of
Grape stand before it. Its output and exit code are its own too; the report goes to stderr when it has ended.

A notebook is executed from its first to its last cell in a kernel of its own. It is not changed and the kernel works in
the notebook's folder.

Which cells: those that --cell names; with --all every code cell of plain Python; otherwise the cells that begin with
%%grape, or, where there is none, every code cell of plain Python. Cells are numbered from 1 in the order of the file,
counting every code cell, empty ones too, and no other cell. A cell that begins with %%grape keeps the options it has;
other cells get a %%grape line while they run, which is line 1 of the lines that their reports count.
Cells with another magic, a shell line or a syntax error run as they are.
"""

_RUN_END = """\
If a cell raises, the cells after it do not run. What was measured until then is still reported and written.
JSON: the report where one cell was measured, {"version": 1, "cells": [report, ...]} where several were. Views and
traces of several cells go to a file for each: view.html becomes view-cell-3.html.
"""

_APPLY = """\
Write a copy of a notebook or a script with the rewrites that a report offers: those whose results were compared and
found identical, or with --unverified all: those of a script are not compared. Only the sources of the rewritten cells
change. Nothing is overwritten, and nothing is written where a cell or the script was edited since the report.
"""

_DEMO = "Decode with a small random model, first as it is, then under %%grape, and show the report."
_ADVISE = "Findings that the source of a notebook or a Python file shows. Nothing is run or imported."
_COMPARE = "Compare two files that --json wrote: times, outcomes, findings."
_MCP = """\
Serve the Model Context Protocol over standard input and output, for files of this folder. Needs
the package mcp: pip install 'grape-jupyter[mcp]'."""
_VIEW = """\
Write a view with its timelines, or the summary of a report, as one HTML page that needs no
kernel and no network."""

# The CLI writes one file for all cells, where the magic writes one per cell.
_OF_THE_COMMAND = {"json"}


class _Parser(argparse.ArgumentParser):
    """Reports a usage error as Grape does, in one line."""

    run_flags: Mapping[str, bool] = {}
    """The options of `grape run`, and whether they take a value."""
    commands: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def build_parser() -> _Parser:
    """The parser of `grape`; `command` in its namespace names the subcommand."""
    parser = _Parser(
        prog="grape",
        description="Profile PyTorch code in notebooks, run it on CUDA graphs, check that the results are the same.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"grape {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    parser.run_flags = _add_run(commands)
    _add_apply(commands)
    _add(commands, "demo", "the main job on this machine's own device, GPU or CPU", _DEMO)
    _add(commands, "doctor", "what works on this machine, and what is missing")
    explain = _add(commands, "explain", "what a finding means and how to fix it")
    explain.add_argument("code", metavar="CODE", help="for example GR101")
    advise = _add(commands, "advise", "what the source shows, without running it", _ADVISE, "--json")
    advise.add_argument("file", metavar="NOTEBOOK|FILE.py", help="an .ipynb or .py file")
    advise.add_argument("--json", metavar="FILE", help="write all findings as JSON")
    compare = _add(commands, "compare", "what changed between two reports", _COMPARE)
    compare.add_argument("first", metavar="A.json", help="the earlier report")
    compare.add_argument("second", metavar="B.json", help="the later report")
    _add(commands, "mcp", "serve assistants: profile, propose, prove, undo", _MCP)
    view = _add(commands, "view", "a recorded view or report, as one HTML page", _VIEW, "--out")
    view.add_argument("file", metavar="FILE.json", help="a view (%%grape view, --view) or a report (--json)")
    view.add_argument("--out", metavar="FILE.html", help="where to write the page; default: in the current directory")
    parser.commands = tuple(commands.choices)
    return parser


def _add(
    commands: argparse._SubParsersAction[_Parser], name: str, help: str, description: str | None = None, *flags: str
) -> _Parser:
    parser = commands.add_parser(name, help=help, description=description, allow_abbrev=False)
    parser.set_defaults(flags=flags)
    return parser


def _add_run(commands: argparse._SubParsersAction[_Parser]) -> dict[str, bool]:
    """Gives its options, and whether they take a value."""
    run = commands.add_parser(
        "run",
        help="run a script or a notebook under Grape and report",
        description=_RUN,
        epilog=_RUN_END + "\n" + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    run.add_argument("notebook", metavar="NOTEBOOK|SCRIPT.py", help="an .ipynb or .py file")
    which = run.add_mutually_exclusive_group()
    which.add_argument("--cell", metavar="N", type=_cell, action="append", help="measure code cell N; can be repeated")
    which.add_argument("--all", action="store_true", help="measure every code cell of plain Python")
    run.add_argument("--json", metavar="FILE", help="write the reports as JSON")
    run.add_argument("--html", metavar="FILE", help="write the reports as a page that stands alone")
    run.add_argument("--view", metavar="FILE", help="write the interactive view: .html, or .json for grape view")
    run.add_argument("--trace", metavar="FILE", help="write the timelines for Perfetto")
    run.add_argument("--out", metavar="NOTEBOOK", help="write the executed notebook to another file")
    run.add_argument("--timeout", metavar="S", type=_seconds, help="the most seconds one cell may take")
    run.add_argument("--kernel", metavar="NAME", help="the kernel to use; default: the one the notebook names")
    run.add_argument(
        "--fail-on",
        metavar="SEVERITY",
        choices=("blocker", "costly"),
        help="exit with 1 where a finding is a blocker, or at least costly",
    )
    shared = run.add_argument_group("options of %%grape, for the cells that do not have the magic")
    for option in OPTIONS:
        if option.field in _OF_THE_COMMAND:
            continue
        dest = f"grape_{option.field}"
        if option.metavar is None:
            shared.add_argument(*option.flags, dest=dest, action="store_true", help=option.help)
        else:
            shared.add_argument(*option.flags, dest=dest, metavar=option.metavar, help=option.help)
    run.set_defaults(flags=[flag for action in run._actions for flag in action.option_strings])
    known = {flag: action.nargs != 0 for action in run._actions for flag in action.option_strings}
    return {flag: takes for flag, takes in known.items() if flag not in ("-h", "--help")}


def _add_apply(commands: argparse._SubParsersAction[_Parser]) -> None:
    apply = commands.add_parser(
        "apply",
        help="write the accepted rewrites into a copy of a notebook or a script",
        description=_APPLY,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    apply.add_argument("notebook", metavar="NOTEBOOK|SCRIPT.py", help="it is never changed")
    apply.add_argument("-o", "--output", metavar="OUT", help="the copy; default: its name with .grape before the end")
    apply.add_argument("--report", metavar="FILE", help="of grape run --json; default, of a notebook: run it now")
    apply.add_argument("--code", metavar="CODE", action="append", help="only fixes of this finding; can be repeated")
    apply.add_argument("--unverified", action="store_true", help="also fixes whose results were not compared")
    which = apply.add_mutually_exclusive_group()
    which.add_argument("--cell", metavar="N", type=_cell, action="append", help="as for grape run")
    which.add_argument("--all", action="store_true", help="as for grape run")
    apply.add_argument("--timeout", metavar="S", type=_seconds, help="as for grape run")
    apply.add_argument("--kernel", metavar="NAME", help="as for grape run")
    apply.set_defaults(flags=[flag for action in apply._actions for flag in action.option_strings])


def _cell(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"cells are numbered from 1; '{text}' is no such number")
    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not (seconds > 0 and math.isfinite(seconds)):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds above 0")
    return seconds


def is_script(word: str) -> bool:
    """True where `grape run` takes this file for a script. What ends otherwise is read as a notebook."""
    return word.endswith((".py", ".pyw"))


def _divided(parser: _Parser, argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The words for Grape, and those behind a script that `grape run` names: they are the script's own."""
    if not argv or argv[0] != "run":
        return argv, ()
    place = 1
    while place < len(argv):
        if argv[place] == "--":
            place += 1
        elif argv[place].startswith("-"):
            place += 2 if parser.run_flags.get(argv[place]) else 1
            continue
        if place < len(argv) and is_script(argv[place]):
            return argv[: place + 1], argv[place + 1 :]
        break
    return argv, ()


def parse(parser: _Parser, argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of one command; `words` are those of a script. ``grape SCRIPT.py`` is ``grape run SCRIPT.py``.

    Raises `UsageError` with one line, `SystemExit` after --help and --version.
    """
    if argv and (is_script(argv[0]) or argv[0].endswith(".ipynb") or argv[0].partition("=")[0] in parser.run_flags):
        argv = ["run", *argv]
    if argv and not argv[0].startswith("-") and argv[0] not in parser.commands:
        close = difflib.get_close_matches(argv[0], parser.commands, n=1)
        hint = f"did you mean {close[0]}?" if close else f"commands: {', '.join(parser.commands)}"
        raise UsageError(f"unknown command '{argv[0]}'; {hint}")
    own, words = _divided(parser, argv)
    arguments, rest = parser.parse_known_args(own)
    arguments.words = list(words)
    if arguments.command is None:
        what = f"unknown option '{rest[0]}'" if rest else "no command"
        raise UsageError(
            f"{what}; write grape run NOTEBOOK|SCRIPT.py, advise NOTEBOOK, apply NOTEBOOK, compare A.json B.json, "
            "demo, doctor, explain CODE, mcp or view FILE.json, or see grape --help"
        )
    if rest:
        close = difflib.get_close_matches(rest[0].partition("=")[0], arguments.flags, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else f"see grape {arguments.command} --help"
        kind = "option" if rest[0].startswith("-") else "argument"
        raise UsageError(f"unknown {kind} '{rest[0]}'; {hint}")
    return arguments


def option_words(arguments: argparse.Namespace) -> list[str]:
    """The shared options of `grape run` as the words of a ``%%grape`` line. Raises `UsageError` for a wrong value."""
    words: list[str] = []
    for option in OPTIONS:
        value = None if option.field in _OF_THE_COMMAND else getattr(arguments, f"grape_{option.field}")
        if value is True:
            words.append(option.flags[-1])
        elif isinstance(value, str):
            if option.field == "output" and value.endswith(".ipynb"):
                raise UsageError(f"-o binds the report to a name; to write the executed notebook use --out {value}")
            words += [option.flags[-1], value]
    parse_options(words)
    return words
