"""The session of a script, from the first statement that has torch to the last. A fault of Grape's costs the report and
never the script.
"""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING

from ...errors import GrapeError
from ...options import Options
from ...quiet import same_random_stream, syntax_tree, without_collections, without_warnings
from ...rewrite.starts import starts_processes
from .main_module import Statement

if TYPE_CHECKING:
    from ...render import Report
    from ...sessions import OpenSession

_WITH_TORCH = {"torch", "torchvision", "torchaudio", "transformers", "diffusers", "accelerate", "lightning", "timm"}


class ScriptSession:
    """`before` each statement, `finish` behind the last. `name` is the script as it was typed, `file` its whole path.

    Grape does not load torch before the script does: what the script sets up first (devices, threads, an allocator)
    torch reads when it is loaded. A script that loads it inside a function is looked at from its last statement on.
    """

    def __init__(self, *, name: str, file: str, source: str, options: Options, namespace: dict[str, object]) -> None:
        self._name = name
        self._file = file
        self._source = source
        self._options = options
        self._namespace = namespace
        self._session: OpenSession | None = None
        self._over = False
        self.failure: str | None = None
        """Why there is no report, in words; None where there is one, or nothing went wrong."""

    def before(self, statement: Statement, *, last: bool) -> CodeType:
        """The code to run for a statement."""
        tree, code, flags = statement
        if self._session is not None:
            self._guard("stopped", self._session.statement_boundary, code)
        elif not self._over and ("torch" in sys.modules or (last and _imports_torch(self._source))):
            self._guard("could not start", self._open, code)
        if self._session is None or not self._session.outlines:
            return code
        try:
            from ...sessions import outlined_code

            with same_random_stream(), without_warnings(), without_collections():
                return outlined_code(tree, self._file, "exec", flags, self._namespace) or code
        except Exception:  # it runs as written
            return code

    def finish(self, error: BaseException | None) -> Report | None:
        """Close the session; its report, or None where there was none."""
        session, self._session, self._over = self._session, None, True
        if session is None:
            if self.failure is None:
                late = "loads PyTorch in its last line only; import it at the top" if "torch" in sys.modules else ""
                self.failure = f"it {late or 'loaded no PyTorch'}, so nothing was looked at"
            return None
        with same_random_stream(), without_warnings(), without_collections():
            try:
                return session.close(error)
            except (Exception, KeyboardInterrupt) as failure:
                self.failure = f"no report, the script itself is not affected: {_words(failure)}"
                return None

    def _open(self, code: CodeType) -> None:
        from ...sessions import Cell, LaunchedSession, session_for

        cell = Cell(name=self._name, source=self._source, filename=self._file)
        starts = None if self._options.profile else starts_processes(self._source, self._namespace)
        session: OpenSession | None = None
        if starts != "fork":
            session = session_for(options=self._options, cell=cell, namespace=self._namespace)
        if session is None or starts is not None:
            session = LaunchedSession(options=self._options, cell=cell, namespace=self._namespace, own=session)
        try:
            session.open(code)
        except BaseException:
            _abandon(session)
            raise
        self._session = session

    def _guard(self, what: str, step: Callable[..., None], *args: object) -> None:
        try:
            with same_random_stream(), without_warnings(), without_collections():
                step(*args)
        except Exception as error:
            session, self._session, self._over = self._session, None, True
            if session is not None:
                _abandon(session)
            self.failure = f"{what}, the script went on without it: {_words(error)}"


def _imports_torch(source: str) -> bool:
    """True where an import of torch, or of a library around it, stands anywhere in the source."""
    tree = syntax_tree(source)
    nodes = list(ast.walk(tree)) if tree is not None else []
    names = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return any(name.partition(".")[0] in _WITH_TORCH for name in names)


def _abandon(session: OpenSession) -> None:
    with contextlib.suppress(Exception):
        session.abandon()


def _words(error: BaseException) -> str:
    if isinstance(error, GrapeError):
        return str(error)
    return f"{type(error).__name__}: {error}".splitlines()[0]
