"""What the ranks of a process group tell each other at the end of a cell, through the store that the group has.

Never by a collective, which would wait for ranks that run something else. Nobody waits here but rank 0, for less than a
second. Who cannot be heard is missing.
"""

from __future__ import annotations

import _thread
import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...originals import monotonic, sleep
from ...tracing import Group

PATIENCE_S = 0.5
"""That rank 0 waits for the others, in all; half as long after a cell at which somebody was missing."""
LEAST_PATIENCE_S = 0.03
_BESIDE_S = 1.0
"""That a store may take longer, which answers within a millisecond on a machine that is not busy."""
_POLL_S = 0.002


@dataclass(slots=True)
class Exchange:
    """Of this process. A rank has one key for each source, and posts there what it ran last of it: to count the runs
    would part ranks for good once one of them ran the cell alone.
    """

    _group: Group | None = None
    _last: str | None = None
    """The key under which this rank posted last."""
    _patience_s: float = PATIENCE_S
    _asked: list[dict[int, str]] | None = None
    """Where the store did not answer in time: its answer will be in there. Until then it is not asked again."""

    def tell(self, group: Group, source: str, message: str, is_of_now: Callable[[str], bool]) -> dict[int, str]:
        """Post `message` about the cell with this `source`. In rank 0, what the others posted of it, by rank, as far as
        it `is_of_now` and no earlier run's; elsewhere nothing. Raises nothing.
        """
        if self._group is None or self._group.of() is not group.of():
            self._last, self._patience_s, self._asked = None, PATIENCE_S, None
        self._group = group
        digest = hashlib.blake2b(source.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        key, last = f"grape/{digest}", self._last
        store = group.store()
        if store is None or self._asked == []:
            return {}
        if group.rank == 0:
            talk = partial(_read, store, group.size, key, self._patience_s, is_of_now)
        else:
            self._last = f"{key}/{group.rank}"
            talk = partial(_post, store, self._last, message, last)
        waits_s = self._patience_s if group.rank == 0 else 0.0
        self._asked = _begin(talk, waits_s + _BESIDE_S)
        found = self._asked[0] if self._asked else {}
        if group.rank == 0:
            missed = len(found) < group.size - 1
            self._patience_s = max(LEAST_PATIENCE_S, self._patience_s / 2) if missed else PATIENCE_S
        return found


exchange = Exchange()


def _post(store: Any, key: str, message: str, last: str | None) -> dict[int, str]:
    store = _apart(store)
    if last is not None and last != key:
        _delete(store, last)  # rank 0 has not read it
    store.set(key, message)
    return {}


def _read(store: Any, size: int, key: str, patience_s: float, is_of_now: Callable[[str], bool]) -> dict[int, str]:
    store = _apart(store)
    found: dict[int, str] = {}
    until = monotonic() + patience_s
    while True:
        for rank in range(1, size):
            name = f"{key}/{rank}"
            if rank not in found and store.check([name]):
                message = store.get(name).decode()
                if is_of_now(message):
                    found[rank] = message
                    _delete(store, name)
        if len(found) == size - 1 or monotonic() >= until:
            return found
        sleep(_POLL_S)


def _apart(store: Any) -> Any:
    """With a connection of its own: another thread of the person's, or of torch's, may be waiting in the store."""
    with contextlib.suppress(Exception):
        return store.clone()
    return store


def _delete(store: Any, key: str) -> None:
    with contextlib.suppress(Exception):  # a store in a file keeps what it has
        store.delete_key(key)


def _begin(talk: Callable[[], dict[int, str]], within_s: float) -> list[dict[int, str]]:
    """The result of `talk` will be in the list; this waits for it no longer than so. It runs on a thread that nobody's
    hooks see.
    """
    done = _thread.allocate_lock()
    done.acquire()
    found: list[dict[int, str]] = []

    def run() -> None:
        try:
            found.append(talk())
        except BaseException:  # the store is gone, with the process that had it
            found.append({})
        finally:
            done.release()

    _thread.start_new_thread(run, ())
    done.acquire(timeout=within_s)
    return found
