"""The one stream of a process. Cells and functions are inside it in turn; what it learned from one serves the others.

It is open while somebody is inside, paused while somebody holds it, and closed once nobody does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Iterator
from dataclasses import replace
from subprocess import Popen

from .. import native
from ..model.stream import Stop, added
from ..native import Unavailable
from .counts import Evidence, Settings
from .session import Stream, beside_extensions, open_stream

_IN_USE = "another thread is served by the stream"


class Building(Unavailable):
    """The extension is compiled in another process; until then everything runs as written."""


class Keeper:
    """Whoever `enter`s must `leave`; whoever `hold`s must `release`."""

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self._settings: Settings | None = None
        self._holders: set[Hashable] = set()
        self._inside: list[Hashable] = []
        self._thread = 0
        self._aside = 0
        self._user: Hashable = None
        self._since: Evidence | None = None
        self._found: dict[Hashable, Evidence] = {}
        self._numbers: dict[Hashable, int] = {}
        self._given = 0
        self._stops: dict[Hashable, tuple[Stop, ...]] = {}
        self._build: Popen[bytes] | None = None
        self._failed: Unavailable | None = None

    @property
    def inside(self) -> bool:
        """True where somebody is inside now."""
        return bool(self._inside) and self._living() is not None

    @property
    def serving(self) -> bool:
        """True where somebody is inside now and not `aside`."""
        return self.inside and not self._aside

    def held_by(self, holder: Hashable) -> bool:
        return holder in self._holders and self._living() is not None

    def serves(self, holder: Hashable) -> bool:
        """True where it is held by `holder`, and has learned something that may serve others."""
        return self.held_by(holder) and self.stream is not None and self.stream.counts().fragments > 0

    def hold(self, holder: Hashable) -> None:
        """Keep what is recorded until `release`, also while nobody is inside."""
        self._holders.add(holder)

    def release(self, holder: Hashable) -> None:
        """Give that up. The last one who does closes the stream, also where somebody is inside, who runs as written."""
        self._holders.discard(holder)
        if not self._holders:
            self.close()

    def enter(self, user: Hashable, settings: Settings | None = None) -> Stream | Unavailable:
        """Serve this thread from now on. What it does is counted for the outermost `user` that is not None. Where it is
        served already, settings do not matter; else others than before begin anew, and None are those of before.
        """
        here = threading.get_ident()
        stream = self._living()
        if self._inside and stream is not None:
            if self._thread != here:
                return Unavailable(_IN_USE)
            if stream.stopped:
                return Unavailable(stream.stopped)
            self._inside.append(user)
            self._charge(stream)
            return stream
        wanted = settings or self._settings or Settings()
        if stream is not None and wanted != self._settings:
            self.close()
            stream = None
        entered = (self._not_built() or open_stream(wanted)) if stream is None else stream.resume() or stream
        if isinstance(entered, Stream):
            self.stream, self._settings = entered, wanted
            self._inside, self._thread = [user], here
            self._charge(entered)
        elif stream is not None and stream.stopped:
            self.close()
        return entered

    def begin_here(self) -> None:
        """Whoever enters next finds no stream that knows nothing and defers where an earlier cell began."""
        stream = self._living()
        if stream is not None and not self._inside and stream.is_left_behind:
            self.close()

    def prepare(self) -> Unavailable | None:
        """Begin to build, where that is to be done; why nothing can be served yet, or at all."""
        return self._not_built() or beside_extensions()

    def evidence(self, user: Hashable, *, forget: bool = False) -> Evidence | None:
        """Counts of what served `user` so far; None where it was by nothing."""
        if self.stream is not None:
            self._settle(self.stream)
        found = self._found.get(user)
        found = found and replace(found, stops=self._stops_of(user, self.stream))
        if forget:
            self._user = None if self._user is user else self._user
            for known in (self._found, self._numbers, self._stops):
                known.pop(user, None)
        return found

    def look_anew(self, *, first: bool = False) -> None:
        """Other code runs from now on, and lines of earlier code are not its. The `first` time more may be spent."""
        if self.stream is not None:
            self._keep_stops(self.stream)
            self.stream.look_anew(first=first)

    def _stops_of(self, user: Hashable, stream: Stream | None) -> tuple[Stop, ...]:
        now = stream.stops(self._numbers[user]) if stream is not None and user in self._numbers else ()
        return added(self._stops.get(user, ()), now)

    def _keep_stops(self, stream: Stream) -> None:
        """It forgets them, or goes."""
        self._stops = {user: self._stops_of(user, stream) for user in self._numbers}

    def _charge(self, stream: Stream) -> None:
        user = next((one for one in self._inside if one is not None), None)
        if user is not self._user:
            self._settle(stream)
            self._user = user
            stream.charge(self._number(user))

    def _number(self, user: Hashable) -> int:
        """0 is nobody's."""
        if user is None:
            return 0
        if user not in self._numbers:
            self._given += 1
            self._numbers[user] = self._given
        return self._numbers[user]

    def _settle(self, stream: Stream) -> None:
        now, since, user = stream.counts(), self._since, self._user
        self._since = now
        if user is not None:
            found = now.since(since) if since is not None else now
            before = self._found.get(user)
            self._found[user] = found if before is None else before.plus(found)

    def leave(self) -> None:
        """Issue what is pending. May raise what an operator raised that was issued late."""
        if self._inside:
            self._inside.pop()
        if self.stream is None:
            return
        if self._inside:
            self._charge(self.stream)
        elif self._holders and not self.stream.stopped:
            self.stream.pause()
        else:
            self.close()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What runs in the block, on the thread that is served, runs as written. May raise as `leave` does."""
        stream = self.stream if self._inside else None
        if stream is not None:
            stream.pause()
        self._aside += 1
        try:
            yield
        finally:
            self._aside -= 1
            if stream is not None:
                stream.resume()

    def close(self) -> None:
        """Take everything back, whoever holds it."""
        stream, self.stream = self.stream, None
        if stream is not None:
            try:
                stream.close()
            finally:
                self._settle(stream)
                self._keep_stops(stream)
                self._user = self._since = None
                self._inside = []

    def _living(self) -> Stream | None:
        """None where it was closed, or this process was forked from the one that has it."""
        if self.stream is not None and not self.stream.is_open:
            self.stream = self._user = self._since = None
            self._inside = []
        return self.stream

    def _not_built(self) -> Unavailable | None:
        """Begins to build where that is to be done; None once it is."""
        if self._failed is not None or native.ready():
            return self._failed
        if self._build is None:
            self._failed = native.missing()
            self._build = native.start() if self._failed is None else None
        elif self._build.poll() is not None:
            self._failed = Unavailable(native.said(self._build))
        return self._failed or Building("Grape compiles a part of its own for this torch, once, in the background")


shared = Keeper()
