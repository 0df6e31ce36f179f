"""`grape run SCRIPT.py`: a script runs once, as Python would run it, under one session; its report comes at the end."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib.util
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ...errors import UsageError
from ...options import Options, engine_named, parse_options
from ...quiet import same_random_stream, without_warnings
from ...render.files import write_text
from ...render.json_types import ReportJson
from ...render.verdict.next_step import NO_FILE
from ..parser import option_words
from ..written.outputs import check_outputs, found, has_color, width
from ..written.page import check_view_name
from .main_module import Statement, become_main, show_own_frames, statements
from .rank import own_file, own_rank
from .script_session import ScriptSession

if TYPE_CHECKING:
    from ...render import Report

_FOR_NOTEBOOKS = {
    "--cell": "cell",
    "--all": "all",
    "--out": "out",
    "--timeout": "timeout",
    "--kernel": "kernel",
    "--rewrite": "grape_rewrite",
    "-o": "grape_output",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script that can be read, and what was asked for."""

    name: str
    path: Path
    source: bytes
    words: tuple[str, ...]
    options: Options
    json: str | None
    html: str | None
    view: str | None
    trace: str | None
    fail_on: str | None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Script:
        """Raises `UsageError` for a file that cannot be read or written, and for options that are for notebooks."""
        name = arguments.notebook
        for flag, field in _FOR_NOTEBOOKS.items():
            if getattr(arguments, field):
                raise UsageError(
                    f"{flag} is for notebooks, and '{name}' is a script; options behind its name are its own"
                )
        options = parse_options(option_words(arguments))
        engine_named(options.engine)
        path = Path(name)
        check_view_name(arguments.view)
        outputs = [own_file(file) for file in (arguments.json, arguments.html, arguments.view, arguments.trace)]
        check_outputs(path, "script", [file for file in outputs if file is not None])
        try:
            source = path.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read '{name}': {error.strerror or error}; check the path") from None
        return cls(
            name=name,
            path=path,
            source=source,
            words=tuple(arguments.words),
            options=options,
            json=outputs[0],
            html=outputs[1],
            view=outputs[2],
            trace=outputs[3],
            fail_on=arguments.fail_on,
        )

    def run(self) -> int:
        """Run it, and report. Raises what the script raises, `SystemExit` too; gives 0 where it came to its end, or 1
        where --fail-on found something.
        """
        file = os.path.abspath(self.path)
        namespace = become_main(self.path, list(self.words), self.name)
        session = ScriptSession(
            name=self.name,
            file=file,
            source=_text(self.source),
            options=self.options,
            namespace=namespace,
        )
        end = _End(self)
        # The first that is registered runs last: behind tracebacks, threads and whatever the script has to say.
        atexit.register(end.show)
        try:
            for statement, is_last in _with_last(statements(self.source, file)):
                exec(session.before(statement, last=is_last), namespace)
        except SystemExit as stop:
            end.come(session, stop)
            if stop.code in (None, 0) and end.failed:
                return 1
            raise
        except BaseException as error:
            end.come(session, error)
            show_own_frames(namespace)
            raise
        end.come(session, None)
        return 1 if end.failed else 0


def _text(source: bytes) -> str:
    try:
        return importlib.util.decode_source(source)
    except (SyntaxError, ValueError):  # said when it is compiled
        return source.decode("utf-8", errors="replace")


def _with_last(found: Iterator[Statement]) -> Iterator[tuple[Statement, bool]]:
    """Each with whether it is the last."""
    held = next(found, None)
    while held is not None:
        after = next(found, None)
        yield held, after is None
        held = after


class _End:
    """Output that comes when the script has ended: files at once, the text when the process ends. Not in a process that
    the script forked.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._process = os.getpid()
        self._said: list[str] = []
        self.failed = False
        """True where --fail-on found something."""

    def come(self, session: ScriptSession, error: BaseException | None) -> None:
        """Close the session and write what was asked for. Raises nothing."""
        if os.getpid() != self._process:
            return
        said = error
        if isinstance(error, SystemExit) and error.code in (None, 0):
            said = None
        report = session.finish(said)
        with same_random_stream(), without_warnings():
            if report is None:
                self._tell(f"Grape: {self._script.name}: {session.failure}")
                self._told_of_files()
            else:
                self._try(self._report, report)
            self._try(_release)

    def show(self) -> None:
        """Print what there is to say, below all that the script printed."""
        if os.getpid() == self._process and self._said:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
            with contextlib.suppress(OSError, ValueError):
                print("\n".join(self._said), file=sys.stderr, flush=True)

    def _tell(self, text: str) -> None:
        self._said.append(text)

    def _try(self, step: Callable[..., None], *args: object) -> None:
        try:
            step(*args)
        except Exception as error:
            self._tell(
                f"grape: {error}" if isinstance(error, UsageError) else f"Grape: {type(error).__name__}: {error}"
            )

    def _report(self, report: Report) -> None:
        script = self._script
        words = f"{shlex.quote(script.name)} {f'--report {shlex.quote(script.json)}' if script.json else NO_FILE}"
        report = replace(report.with_fixes(), notebook=words)
        if own_rank() == 0 or report.evidence.error is not None:  # rank 0 tells of all
            self._tell(f"\nGrape: {script.name}")
            self._tell(report.to_text(width=width(), color=has_color(sys.stderr)).rstrip())
        found_here = found([(script.name, cast(ReportJson, report.to_dict()))], script.fail_on)
        if script.json is not None:
            self._try(write_text, script.json, report.to_json(), "the report")
        if script.html is not None:
            self._try(self._page, report)
        if script.view is not None or script.trace is not None:
            self._try(self._drawn, report)
        if found_here is not None:
            self.failed = True
            self._tell(f"grape: {found_here}")

    def _page(self, report: Report) -> None:
        from ...render.timeline.view import build_view
        from ..written.page import Section, html_page

        script = self._script
        section = Section(
            id="script",
            title=script.name,
            source=_text(script.source),
            html=report.to_html(),
            view=build_view(report),
        )
        assert script.html is not None
        write_text(script.html, html_page(script.path.name, [section]), "the page")

    def _drawn(self, report: Report) -> None:
        from ..notebooks.kernel_side import rendered
        from ..written.page import NO_TIMELINE, write_drawn

        script = self._script
        for what, file in (("view", script.view), ("trace", script.trace)):
            if file is not None:
                write_drawn(file, what, rendered(report, what), None)
        if not report.has_timeline:
            self._tell(f"grape: {NO_TIMELINE.format(script.name)}")

    def _told_of_files(self) -> None:
        script = self._script
        files = [file for file in (script.json, script.html, script.view, script.trace) if file is not None]
        if files:
            self._tell(f"grape: {' and '.join(files)} not written: there is no report")


def _release() -> None:
    """Let the process go on as without Grape."""
    sessions = sys.modules.get("grape.sessions")
    if sessions is not None:
        sessions.close_engine()
