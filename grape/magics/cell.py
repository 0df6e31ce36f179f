"""One cell under ``%%grape``: its session, its display and what is left of it afterwards.

Whatever goes wrong on Grape's side becomes one line for the person, and their cell goes on without Grape.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING

from ..errors import GrapeError, UsageError
from ..failures import HOW, forget_failures, log_failure, said, surviving
from ..options import engine_named
from ..originals import perf_counter
from ..quiet import same_random_stream, without_collections, without_warnings
from .display import CellDisplay, say
from .history import history
from .loops import Stopwatch, outline_loops_of
from .rewriting.at_once import Replacement, watch_tree
from .rewriting.rewrites import rewrites
from .rewriting.taken import at_once
from .source import find_magic

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from ..options import Options
    from ..render import Report
    from ..rewrite.starts import Starts
    from ..sessions import CellKey, Mode, OpenSession

EMPTY = "%%grape: nothing to run; put the code below the %%grape line"


def hold_off_interrupts() -> None:
    """A cell begins: where graphs replay, its interrupt ends the person's code and not Grape's in the middle."""
    runtime = sys.modules.get("grape.runtime")
    if runtime is not None:
        runtime.hold_off_again()


def let_interrupt_come() -> None:
    """One that waited for Grape comes here, where the cell can still end with it."""
    runtime = sys.modules.get("grape.runtime")
    if runtime is not None:
        runtime.held.come()


def end_interrupt() -> None:
    """One that came when the code of the cell had ended is over: what goes on now, IPython and the kernel, it would
    cost the reply that a front end waits for.
    """
    try:
        let_interrupt_come()
    except KeyboardInterrupt:
        say("Grape: interrupted after the cell had ended")


def begin_plain_cell() -> bool:
    """A cell without Grape begins, which operator streams may serve. True where `end_plain_cell` has to be called."""
    sessions = sys.modules.get("grape.sessions")
    served = False
    with surviving("it had operator streams serve a cell"):  # it runs as written
        served = sessions is not None and sessions.begin_plain_cell()
    return served


def end_plain_cell() -> None:
    """It has ended. Raises nothing."""
    try:
        sys.modules["grape.sessions"].end_plain_cell()
    except Exception as error:
        say(f"Grape: an operator of this cell failed when it was issued: {_words(error)}")


def release_abandoned(shell: InteractiveShell) -> None:
    """A cell without Grape has ended: graphs of a model that it made anew, say, are released, and those that made it
    slower, with a line for each region. Raises nothing.
    """
    sessions = sys.modules.get("grape.sessions")
    if sessions is not None:
        with surviving("it released graphs that nothing uses"):  # the next cell that ends tries again
            for line in sessions.release_abandoned(shell.user_ns):
                say(f"Grape: {line}")


class GrapeCell:
    """From the ``%%grape`` line to the report. The session opens with the first statement: a cell that does not
    compile never has one.
    """

    def __init__(self, shell: InteractiveShell, *, source: str, options: Options, info: object = None) -> None:
        self._since = perf_counter()
        self._ahead = Stopwatch()
        forget_failures()
        with self._ahead:
            self._prepare(shell, source, options, info)

    def _prepare(self, shell: InteractiveShell, source: str, options: Options, info: object) -> None:
        self.info = info
        self.thread = threading.get_ident()
        self._shell = shell
        self._source = source
        self.options = options
        self._session: OpenSession | None = None
        self._started = False
        self._display = CellDisplay(shell)
        self._streamed = engine_named(options.engine) == "streams"
        self._launches = self._starts_processes()
        self._mode, self._key = self._plan()
        outlines = not (self._launches == "fork" or self._streamed) and self._mode not in ("leave", "stream")
        self._restore_compiler = outline_loops_of(shell, self._ahead) if outlines else lambda: None
        self._replacement: Replacement | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._told_of_json = options.json is not None and not _can_write(options.json)

    def _starts_processes(self) -> Starts | None:
        """How; this process must not touch a device for those that are forked off."""
        if self.options.profile or self.options.rewrite:
            return None
        from ..rewrite.starts import starts_processes

        try:
            return starts_processes(self._code(), self._shell.user_ns)
        except Exception:  # whatever stands in the namespace
            log_failure("it asked whether a cell starts processes")
            return None

    def _code(self) -> str:
        """What stands below the magic."""
        lines = self._source.splitlines(keepends=True)
        magic = find_magic(lines)
        return "".join(lines[magic.index + 1 :] if magic else lines)

    def _plan(self) -> tuple[Mode, CellKey | None]:
        """How much attention the cell gets. Before torch is imported nothing is known of it."""
        if (
            self._launches == "fork"
            or "torch" not in sys.modules
            or self.options.profile
            or self.options.rewrite
            or self._streamed
        ):
            return "watch", None
        from ..sessions import plan

        try:
            return plan(self._code(), self._shell.user_ns, self.options)
        except Exception:  # whatever stands in the namespace
            log_failure("it asked what is known of a cell")
            return "watch", None

    def rewrite(self) -> None:
        """Under --rewrite: have the tree of the cell replaced before it is compiled, where rewrites are known."""
        if self.options.rewrite:
            with self._ahead:
                self._guard("could not rewrite", self._rewrite)

    def _rewrite(self) -> None:
        file = f"In[{self._shell.execution_count}]"
        rewritten = at_once.rewritten(self._source, file)
        if rewritten is not None and self._shell.ast_node_interactivity == "last_expr":
            self._replacement = Replacement(self._shell, self._source, rewritten, at_once.left)
            self._unwatch = watch_tree(self._shell, self._replacement)

    def before_statement(self, filename: str, code: CodeType | None = None) -> None:
        """Called before each top-level statement, `code`; `filename` is the code filename of the cell."""
        if not self._started:
            self._started = True
            self._guard("could not start", self._open, filename, code)
        elif self._session is not None:
            self._guard("stopped", self._session.statement_boundary, code)

    def finish(self, error: BaseException | None) -> None:
        """Close the session, bind and write what was asked for, show the report. Idempotent; raises nothing."""
        session, self._session = self._session, None
        self._restore_compiler()
        self._unwatch()
        if self._replacement is not None:
            self._replacement.tidy()
        try:
            if session is not None:
                with same_random_stream(), without_warnings(), without_collections():
                    self._conclude(session, error)
            elif self._display.unfinished:
                self._display.withdraw("stopped before anything was observed")
            elif not self._started and error is None:
                say(EMPTY)
        finally:
            self._display.close()

    def _open(self, filename: str, code: CodeType | None) -> None:
        # Where torch is not loaded yet, what this loads with it is the cell's, as torch is.
        with self._ahead if "torch" in sys.modules else contextlib.nullcontext():
            from ..sessions import Cell

        def shown(file: str) -> str:
            label = self._shell.compile.format_code_name(file)
            return str(label[1]) if label else file

        if self._key is None:
            self._key = self._plan()[1]
        replacement = self._replacement
        rewritten = replacement.rewritten if replacement is not None and replacement.happened else None
        cell = Cell(
            name=shown(filename),
            source=self._source,
            filename=filename,
            id=getattr(self.info, "cell_id", None),
            rewritten=rewritten,
            taken=rewrites.taken(),
            mode=self._mode,
            key=self._key,
            ahead_ms=self._ahead.ms,
            since=self._since,
        )
        session = self._make_session()(
            options=self.options,
            cell=cell,
            namespace=self._shell.user_ns,
            on_progress=self._display.progress,
            file_names=shown,
        )
        try:
            session.open(code)
        except BaseException:
            _abandon(session)
            raise
        self._session = session
        if replacement is not None and rewritten is not None:
            at_once.remember(replacement.ran(shown(filename), filename))

    def _make_session(self) -> Callable[..., OpenSession]:
        """Who makes the session: a cell that regions look at or serve is theirs under every engine but streams."""
        if self._launches is None:
            return self._session_of_this_process()
        from ..sessions import LaunchedSession

        own = self._session_of_this_process() if self._launches == "spawn" else None
        return lambda **given: LaunchedSession(own=own(**given) if own is not None else None, **given)

    def _session_of_this_process(self) -> Callable[..., OpenSession]:
        if self._streamed or self._mode in ("leave", "stream"):
            from ..sessions import session_for

            return session_for
        from ..sessions import Session

        return Session

    def _guard(self, what: str, step: Callable[..., None], *args: object) -> None:
        """Run `step` of the session; where it fails, say so and go on without a session. An interrupt passes."""
        try:
            with same_random_stream(), without_warnings(), without_collections():
                step(*args)
        except Exception as error:
            session, self._session = self._session, None
            if session is not None:
                _abandon(session)
            self._display.withdraw(f"{what}, the cell goes on without it: {_own(error)}")

    def _conclude(self, session: OpenSession, error: BaseException | None) -> None:
        try:
            report = session.close(error)
        except (Exception, KeyboardInterrupt) as failure:
            self._display.withdraw(f"no report, the cell itself is not affected: {_own(failure)}")
            return
        at_once.learn(self._source, report)
        if self.options.output is not None:
            self._shell.push({self.options.output: report})
        if self.options.json is not None:
            _write_json(report, self.options.json, quiet=self._told_of_json)
        try:
            history.add(report, self._source, getattr(self.info, "cell_id", None))
            shown = history.as_shown(report, self._source) if error is None else report
            self._display.finish(shown, error, brief=self._mode != "watch" and session.is_known)
            if error is None and not self.options.no_widget:
                self._display.widget(report)
        except (Exception, KeyboardInterrupt) as failure:
            say(f"Grape: the report is in grape.last but could not be shown: {_own(failure)}")


def _abandon(session: OpenSession) -> None:
    try:
        session.abandon()
    except Exception as error:
        say(f"Grape: leaving the cell failed too: {_own(error)}")


def _can_write(path: str) -> bool:
    """Said before the cell runs; it may yet make the folder, so the report is tried to be written all the same."""
    from ..render.files import check_writable

    try:
        check_writable(path, "the report")
    except UsageError as error:
        say(f"UsageError: %%grape --json: {error} (the cell runs)")
        return False
    return True


def _write_json(report: Report, path: str, *, quiet: bool) -> None:
    from ..render.files import write_text

    try:
        write_text(path, report.to_json(), "the report")
    except UsageError as error:
        if not quiet:
            say(f"UsageError: %%grape --json: {error}")


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, GrapeError) else said(error)


def _own(error: BaseException) -> str:
    """The same of an exception that is being handled, which is logged where it is a failure of Grape's own."""
    if isinstance(error, GrapeError) or not isinstance(error, Exception):
        return _words(error)
    log_failure("it looked at a cell")
    return f"{said(error)}; {HOW}"
