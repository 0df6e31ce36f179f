"""In a process that a cell started: a session around what it runs, whose report goes to the cell in a file."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ...failures import surviving
from ...options import Options
from ...quiet import same_random_stream, without_collections, without_warnings
from ...render import Report
from ...rewrite.starts import may_be_a_rank
from ..choice import session_for
from ..process import leave_to_child
from ..ranks import RankMessage, kept
from ..running import Cell

if TYPE_CHECKING:
    from ..engine import OpenSession

Runner = Callable[[Callable[..., object], int, tuple[object, ...], str], None]
"""torch's own: it calls the function with the number of the process, and writes into a file what that raises."""

_RUNNER = "_wrap"
_MODULE = "torch.multiprocessing.spawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildReport:
    """`index`: the process's number among those that were started together."""

    index: int
    message: RankMessage
    report: Report


class _Patched:
    """Of this process: torch's own runner, where another is in its place, and what a child that is forked off takes
    along.
    """

    runner: Runner | None = None
    namespace: dict[str, object] | None = None
    shown: Callable[[str], str] | None = None


_patched = _Patched()


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The runner of processes that a cell starts. It goes to them by fork or by pickle."""

    folder: str
    options: Options
    name: str
    source: str
    filename: str

    def __call__(self, function: Callable[..., object], index: int, args: tuple[object, ...], error_file: str) -> None:
        # What the function raises is shown with the frames from torch's runner on: none of Grape's is among them.
        runner, session = give_back(), None
        heard: list[RankMessage] = []
        with surviving("it opened a session in a process that a cell started"):
            if may_be_a_rank(function):
                (Path(self.folder) / f"{index}-{os.getpid()}.began").touch()
                kept.keep = heard.append
                session = self._open(index)
        failure: BaseException | None = None
        try:
            runner(function, index, args, error_file)
        except BaseException as stop:
            # The runner exits where the function raised.
            failure = stop.__context__ if isinstance(stop, SystemExit) and stop.__context__ is not None else stop
            raise
        finally:
            if session is not None:
                with surviving("it reported a process that a cell started"):
                    self._close(session, index, heard, failure)
            failure = None

    def _open(self, index: int) -> OpenSession:
        leave_to_child()
        namespace = _patched.namespace if _patched.namespace is not None else vars(sys.modules["__main__"])
        cell = Cell(name=self.name, source=self.source, filename=self.filename)
        with same_random_stream(), without_warnings(), without_collections(), _rank(index):
            session = session_for(
                options=self.options, cell=cell, namespace=namespace, file_names=_patched.shown or cell.names(None)
            )
            try:
                session.open()
            except BaseException:
                with surviving("it left a session in a process that a cell started"):
                    session.abandon()
                raise
        return session

    def _close(self, session: OpenSession, index: int, heard: list[RankMessage], failure: BaseException | None) -> None:
        with same_random_stream(), without_warnings(), without_collections():
            report = session.close(failure)
            found = ChildReport(index=index, message=heard[-1], report=report)
            path = Path(self.folder) / f"{index}-{os.getpid()}"
            path.with_suffix(".part").write_bytes(pickle.dumps(found))
            path.with_suffix(".part").rename(path.with_suffix(".report"))


@contextmanager
def _rank(index: int) -> Iterator[None]:
    """The device of a process is that of its number, where nothing says otherwise. Nothing stays in the environment."""
    name = "LOCAL_RANK"
    if name in os.environ:
        yield
        return
    os.environ[name] = str(index)
    try:
        yield
    finally:
        os.environ.pop(name, None)


def take_over(
    served: Served, namespace: dict[str, object] | None = None, shown: Callable[[str], str] | None = None
) -> None:
    """Have torch start processes with `served` until `give_back`. Where torch is not loaded yet, or has become another,
    they run as written.
    """
    module = sys.modules.get(_MODULE)
    if _patched.runner is None and hasattr(module, _RUNNER):
        _patched.runner, _patched.namespace, _patched.shown = getattr(module, _RUNNER), namespace, shown
        setattr(module, _RUNNER, served)


def give_back() -> Runner:
    """torch's own runner, in its place again."""
    import torch.multiprocessing  # noqa: F401

    module: ModuleType = sys.modules[_MODULE]
    runner, _patched.runner = _patched.runner, None
    if runner is not None:
        setattr(module, _RUNNER, runner)
    own: Runner = getattr(module, _RUNNER)
    return own


def reports_in(folder: Path) -> tuple[list[ChildReport], int]:
    """What processes left there, by number, the last of each; and how many numbers there are."""
    started = {path.name.partition("-")[0] for path in folder.glob("*.began")}
    found: dict[int, ChildReport] = {}
    for path in sorted(folder.glob("*.report"), key=lambda path: path.stat().st_mtime_ns):
        with surviving("it read the report of a process that a cell started"):
            one = pickle.loads(path.read_bytes())
            found[one.index] = one
    return [found[index] for index in sorted(found)], len(started)
