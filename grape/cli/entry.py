"""`grape`: the parser, and the one place where an error becomes an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec

from ..errors import GrapeError, UsageError
from .parser import build_parser, is_script, parse


def main(argv: Sequence[str] | None = None) -> int:
    """Run one `grape` command and return its exit code; the codes stand in ``grape --help``.

    Writes results to stdout, progress and errors to stderr. `argv` is without the program's name. Raises what a script
    raises that ``grape run`` runs.
    """
    try:
        try:
            arguments = parse(build_parser(), sys.argv[1:] if argv is None else argv)
        except SystemExit as stop:  # argparse has printed --help or --version
            return stop.code if isinstance(stop.code, int) else 0
        run_last = _script(arguments)
        if run_last is None:
            code = _command(arguments)(arguments)
            sys.stdout.flush()
            return code
    except GrapeError as error:
        print(f"grape: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("grape: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read stdout has gone; the interpreter must not fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return run_last()


def _script(arguments: argparse.Namespace) -> Callable[[], int] | None:
    """The call that runs the script that is named: nothing here may catch what it raises. None where none is named."""
    if arguments.command != "run" or not is_script(arguments.notebook):
        return None
    from .scripts.script import Script

    return Script.of(arguments).run


def _command(arguments: argparse.Namespace) -> Callable[[argparse.Namespace], int]:
    """The function behind a subcommand, which has its name; only that one's module is imported."""
    name = arguments.command
    short = {"doctor": _doctor, "explain": _explain, "mcp": _mcp}
    function: Callable[[argparse.Namespace], int] = (
        short[name] if name in short else getattr(import_module(f".{name}", __package__), name)
    )
    return function


def _doctor(_: argparse.Namespace) -> int:
    """What works on this machine, and what is missing."""
    from ..doctor import doctor

    print(doctor().rstrip())
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    """The documentation page of a finding code. Raises `UsageError` for an unknown one."""
    from ..advisor import explain

    print(explain(arguments.code).rstrip())
    return 0


def _mcp(_: argparse.Namespace) -> int:
    """Serve the Model Context Protocol over standard input and output until the client goes. Raises `UsageError` where
    the package is missing.
    """
    if find_spec("mcp") is None:
        raise UsageError("grape mcp needs the package 'mcp': pip install 'grape-jupyter[mcp]'")
    from .assistants.server import serve

    return serve()
