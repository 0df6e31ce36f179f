"""Opens and closes a stream, and says what it did."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from types import ModuleType, TracebackType
from typing import Any

from .. import native
from ..native import Unavailable
from . import threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How streams are found and cut."""

    longest: int = 100  # operators of a segment
    shortest: int = 32  # operators of a fragment that leads back to its own begin
    furthest: int = 4000  # operators of any fragment
    hot: int = 3  # times that a context is met before what follows is recorded
    budget: int = 4 << 30  # bytes of all homes
    strays: int = 16  # operators in a row that may come in between
    issue: bool = True  # False: nothing is computed, to measure what matching alone takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a stream did, counted in operators unless named otherwise."""

    seen: int
    matched: int
    issued: int
    written: Mapping[str, int]  # run as written, by reason
    segments: int
    partial: int  # segments that something cut short
    diverged: int
    entered: int  # times that a fragment began
    recorded: int
    raised: int
    fragments: int
    steps: int  # operators of all fragments
    copied_in: int
    copied_out: int
    copied_bytes: int
    kept: int  # homes whose results outlived a pass
    floated: int  # slots whose tensors lie elsewhere each time
    own_ns: int  # estimated from every 64th operator, what is issued apart
    last_divergence: str


class Stream:
    """An open stream of this thread; as a context manager it closes at the end."""

    def __init__(self, extension: ModuleType, settings: Settings) -> None:
        native_settings = extension.Settings()
        for name, value in asdict(settings).items():
            setattr(native_settings, name, value)
        self._extension = extension
        self._session = extension.Session(native_settings)
        self._undo = ExitStack()
        self._open = False

    def open(self) -> list[str]:
        """Begin; the names of what torch has and cannot be watched."""
        global _current
        _current = self
        self._open = True
        self._undo.callback(threads.watch(self._session.join, self._session.leave))
        missing: list[str] = self._session.open()
        return missing

    def close(self) -> None:
        """Issue what is pending and take everything back. May be called twice."""
        global _current
        if not self._open:
            return
        self._open = False
        _current = None
        try:
            self._session.close()
        finally:
            self._undo.close()
            _closed.append(self)
            settle()

    def flush(self) -> None:
        """Issue what is pending."""
        self._session.flush()

    @property
    def is_open(self) -> bool:
        return self._open

    def evidence(self) -> Evidence:
        found: dict[str, Any] = self._session.evidence()
        return Evidence(**{field.name: found[field.name] for field in fields(Evidence)})

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _take_back(self) -> bool:
        """Take the kernels back, unless a thread or a backward still carries the key and would miss them."""
        if threads.running() or self._extension.in_backward():
            return False
        self._session.take_back()
        return True


_current: Stream | None = None
_closed: list[Stream] = []
_hooked = False


def open_stream(settings: Settings | None = None) -> Stream | Unavailable:
    """Open a stream for this thread and those that it starts."""
    if _current is not None:
        return Unavailable("a stream is open already")
    others = threads.others()
    if others:
        return Unavailable(f"thread {others[0]} runs, and its operators would not be seen")
    settle()
    if _closed:
        return Unavailable("a stream that was closed is still in use")
    extension = native.load()
    if isinstance(extension, Unavailable):
        return extension
    if extension.in_backward():
        return Unavailable("a backward is running")
    refusal = extension.refusal()
    if refusal:
        return Unavailable(refusal)
    _hook_forks()
    stream = Stream(extension, settings or Settings())
    missing = stream.open()
    if missing:
        stream.close()
        return Unavailable(f"torch's {missing[0]} cannot be watched")
    return stream


def settle() -> None:
    """Take back what closed streams had to leave."""
    _closed[:] = [stream for stream in _closed if not stream._take_back()]


def _hook_forks() -> None:
    global _hooked
    if not _hooked:
        _hooked = True  # hooks of forks cannot be taken back; without a stream they do nothing
        os.register_at_fork(before=_before_fork, after_in_child=_in_child)


def _before_fork() -> None:
    if _current is not None:
        _current.flush()


def _in_child() -> None:
    if _current is not None:
        _current._session.in_forked_child()
