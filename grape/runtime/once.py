"""What is tried out once with this build of torch, at the first call that needs to know.

Tensors and operators of such a trial are none of the person's: a thread of its own has no mode, no hook, no transform
and no block of his.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def tried_once(trial: Callable[[], T]) -> functools._lru_cache_wrapper[T]:
    """`trial`, which is run at the first call, in a thread of its own; what it returned is kept."""

    @functools.cache
    @functools.wraps(trial)
    def answer() -> T:
        found: Future[T] = Future()

        def attempt() -> None:
            try:
                found.set_result(trial())
            except BaseException as error:
                found.set_exception(error)

        Thread(target=attempt, daemon=True).start()
        return found.result()

    return answer
