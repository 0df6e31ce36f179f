"""``%grape COMMAND``: one function per command, each returns the text to print. Errors are `UsageError`s."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import PurePath
from types import ModuleType
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..model import CODES
from ..quiet import without_warnings
from .documentation import Command, Page, line_help
from .history import history
from .rewriting.rewrites import NO_FIX, diff_text, rewrites
from .rewriting.taken import at_once
from .source import broken_code, call_in, evaluated

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from ..render import Report

_NOT_PROFILED = "no call of the last cell was profiled"
_NOTHING_YET = "nothing has run under %%grape yet"


def run_command(line: str) -> str:
    """Runs ``%grape line``, and returns what it prints. Raises `UsageError` with one line."""
    first, _, rest = line.strip().partition(" ")
    takes_code = first in COMMANDS and COMMANDS[first].takes_code and rest.strip() not in ("-h", "--help")
    try:
        words = [first, *filter(None, [rest.strip()])] if takes_code else shlex.split(line)
    except ValueError as error:
        broken = broken_code(line) if line.split(None, 1)[0] not in COMMANDS else None
        raise UsageError(f"cannot read '{line}': {broken or error}") from None
    if not words or words[0] in ("-h", "--help"):
        return line_help(COMMANDS.values())
    name, *arguments = words
    command = COMMANDS.get(name)
    if command is None:
        broken = broken_code(line)
        if broken is not None:
            raise UsageError(f"'{line.strip()}' is no command, and no Python: {broken}")
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"commands: {', '.join(COMMANDS)}"
        raise UsageError(f"unknown command '{name}'; {hint}")
    if any(word in ("-h", "--help") for word in arguments):
        return f"%grape {name} {command.argument}".rstrip() + f"\n  {command.help}"
    if len(arguments) > command.most:
        count = ("no argument", "one argument", "two arguments")[command.most]
        takes = ", ".join(filter(None, [count, command.argument]))
        raise UsageError(f"%grape {name} takes {takes}; '{arguments[command.most]}' is too much")
    if len(arguments) < command.least:
        count = "an argument" if command.least == 1 else "two arguments"
        raise UsageError(f"%grape {name} needs {count}: %grape {name} {command.argument}")
    with without_warnings():
        return command.run(*arguments)


def _sessions() -> ModuleType | None:
    """The session layer where something has run, else None: asking for the status must not import torch."""
    return sys.modules.get("grape.sessions")


def _report() -> Report:
    sessions = _sessions()
    report: Report | None = sessions.last_report() if sessions is not None else None
    if report is None:
        raise UsageError("there is no report yet; run a cell with %%grape on its first line")
    return report


def _number(command: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        where = "%grape status" if command == "undo" else "%grape diff"
        raise UsageError(f"%grape {command} takes a number from {where}, not '{text}'")
    return int(text)


def _shell() -> InteractiveShell | None:
    from IPython.core.getipython import get_ipython

    return get_ipython()


def _status() -> str:
    sessions = _sessions()
    if sessions is None:
        return _NOTHING_YET
    engine = sessions.engine()
    first = engine.applied_count + 1
    return str(engine.status([*rewrites.status(first), *at_once.status(first + len(rewrites))]))


def _undo(number: str | None = None) -> str:
    chosen = _number("undo", number)
    sessions = _sessions()
    if sessions is None:
        return f"nothing to undo: {_NOTHING_YET}"
    engine = sessions.engine()
    if not rewrites and not at_once:
        return str(engine.undo(chosen))
    graphs = engine.applied_count
    if chosen is None:
        undone = [engine.undo(None)] if graphs else []
        given_back = [rewrites.undo_all(_shell())] if rewrites else []
        return "\n".join([*undone, *at_once.undo_all(_shell()), *given_back])
    taken = graphs + len(rewrites)
    if graphs < chosen <= taken:
        return rewrites.undo(chosen - graphs - 1, _shell())
    if taken < chosen <= taken + len(at_once):
        return at_once.undo(chosen - taken - 1, _shell())
    if chosen > graphs:
        raise UsageError(f"nothing is applied under the number {chosen}; see %grape status")
    return str(engine.undo(chosen))


def _diff(number: str | None = None) -> str:
    report, chosen = _report(), _number("diff", number)
    shown = diff_text(report, chosen)
    ran = at_once.diffs(report.evidence.file) if chosen is None else []
    return "\n\n".join([*ran, *([] if ran and shown == NO_FIX else [shown])])


def _apply(number: str | None = None) -> str:
    return rewrites.apply(_report(), _number("apply", number), _shell())


def _reset() -> str:
    rewrites.clear()
    history.clear()
    at_once.clear()
    sessions = _sessions()
    return sessions.engine().reset() if sessions is not None else f"nothing to reset: {_NOTHING_YET}"


def _remember(path: str) -> str:
    sessions = _sessions()
    if sessions is None:
        raise UsageError(_NOTHING_YET)
    return str(sessions.remember(sessions.engine(), path))


def _recall(path: str) -> str:
    from ..sessions import engine, recall

    return recall(engine(), path)


def _save(path: str) -> str:
    from ..render.files import write_text

    renderers: dict[str, Callable[[Report], str]] = {
        ".html": lambda report: report.to_html(),
        ".json": lambda report: report.to_json(),
        ".txt": lambda report: report.to_text(),
    }
    render = renderers.get(PurePath(path).suffix.lower())
    if render is None:
        raise UsageError(f"cannot tell the format of '{path}'; end its name in {', '.join(renderers)}")
    write_text(path, render(_report().with_fixes()), "the report")
    return f"saved {path}"


def _trace(path: str) -> str:
    report = _report()
    if not report.has_timeline and not report.memory.at_ns:
        raise UsageError(f"no timeline to write: {_NOT_PROFILED}; '{path}' is not written")
    report.to_chrome_trace(path)
    only = "" if report.has_timeline else f" (memory only: {_NOT_PROFILED})"
    return f"saved {path}{only}; open it in https://ui.perfetto.dev or chrome://tracing"


def _view(path: str) -> str:
    from ..render.files import write_text
    from ..render.html.page import view_json
    from ..render.timeline.view import build_view
    from .view import page_of

    report, suffix = _report().with_fixes(), PurePath(path).suffix.lower()
    if suffix not in (".html", ".json"):
        raise UsageError(f"cannot tell the format of '{path}'; end its name in .html, or in .json for grape view")
    write_text(path, page_of(report) if suffix == ".html" else view_json(build_view(report)), "the view")
    return f"saved {path}"


def _doctor() -> str:
    from ..doctor import doctor

    return doctor()


def _explain(code: str) -> str:
    by_name = {name: key for key, name in CODES.items()}
    known = code.upper() if code.upper() in CODES else by_name.get(code.lower())
    if known is None:
        close = difflib.get_close_matches(code.lower(), by_name, n=1, cutoff=0.7)
        hint = f"did you mean {close[0]}?" if close else f"codes: {', '.join(CODES)}"
        raise UsageError(f"unknown code '{code}'; {hint}")
    from ..advisor import explain

    return Page(explain(known))


def _what_if(code: str) -> str:
    import ast

    from ..sessions import engine
    from ..streams import shared
    from ..whatif import what_if

    call = call_in(code)
    owner = engine()
    if owner.session is not None:
        raise UsageError("this cell runs under Grape; write %grape whatif in a cell of its own")
    shell = _shell()
    module, args, kwargs = evaluated(call, shell.user_ns if shell is not None else {})
    name = ast.unparse(call.func)
    with shared.aside():
        return str(owner.interceptor.undisturbed(lambda: what_if(module, args, kwargs, name=name)))


def _history(path: str | None = None) -> str:
    from ..render.files import write_text

    if path is None:
        return history.text()
    if PurePath(path).suffix.lower() != ".json":
        raise UsageError(f"cannot tell the format of '{path}'; end its name in .json")
    write_text(path, history.to_json(), "the history")
    return f"saved {path}"


def _fix_numbers() -> Sequence[int]:
    """Of the fixes that were made: to make them, for Tab, would take too long."""
    sessions = _sessions()
    report = sessions.last_report() if sessions is not None else None
    findings = report.made_findings if report is not None else ()
    return sorted({finding.fix.id for finding in findings if finding.fix is not None})


def _applied_numbers() -> Sequence[int]:
    sessions = _sessions()
    graphs = sessions.engine().applied_count if sessions is not None else 0
    return range(1, graphs + len(rewrites) + len(at_once) + 1)


NUMBERS: dict[str, Callable[[], Sequence[int]]] = {
    "diff": _fix_numbers,
    "apply": _fix_numbers,
    "undo": _applied_numbers,
    "compare": history.numbers,
}
"""Words that may stand behind a command that takes numbers."""

COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command(name="status", argument="", help="what is accelerated now, and what it holds", run=_status),
        Command(name="diff", argument="[N]", help="what the fixes of the last report change in your code", run=_diff),
        Command(name="apply", argument="[N]", help="take fix N, or all verified ones: a new cell source", run=_apply),
        Command(name="undo", argument="[N]", help="take back what was applied: all, or number N", run=_undo),
        Command(name="history", argument="[FILE]", help="the runs so far, and what changed in them", run=_history),
        Command(name="compare", argument="A B", help="two runs: numbers of history, or files", run=history.compare),
        Command(name="reset", argument="", help="forget everything and release all graphs", run=_reset),
        Command(name="remember", argument="FILE", help="write what was learned of the cells", run=_remember),
        Command(name="recall", argument="FILE", help="use in a new kernel what remember wrote", run=_recall),
        Command(name="save", argument="FILE", help="write the last report: .html, .json or .txt", run=_save),
        Command(name="trace", argument="FILE", help="write the last timelines for Perfetto", run=_trace),
        Command(name="view", argument="FILE", help="write the interactive view: .html, .json", run=_view),
        Command(name="doctor", argument="", help="driver, torch, bindings: what works here and what not", run=_doctor),
        Command(
            name="whatif",
            argument="CALL",
            help="measure torch.compile, half precision and more for model(x)",
            run=_what_if,
            takes_code=True,
        ),
        Command(name="explain", argument="CODE", help="what a finding means, for example GR101", run=_explain),
        Command(name="help", argument="", help="this text", run=lambda: line_help(COMMANDS.values())),
    )
}
