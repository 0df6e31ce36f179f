"""True where the code that calls a module says that gradients are to be differentiated again.

A pair serves such a backward by another run of the forward, whose second derivatives go through two graphs where eager
has one, and differ by rounding. Where the call can tell, it is left eager.
"""

from __future__ import annotations

import sys
import weakref
from types import CodeType, FrameType

from ...tracing import is_own_code

_WORD = "create_graph"
_MOST = 40
"""Frames that are looked at: a kernel's own lie below those of a cell."""
_KNOWN = 4096

_known: dict[int, tuple[weakref.ref[CodeType], bool]] = {}
"""By identity, since code hashes by all that it holds; weakly, since an outlined loop's holds the names of its cell."""


def will_differentiate_again() -> bool:
    """True if a caller that the person wrote names the argument `create_graph`. What callers will call is not seen."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST):
        if frame is None:
            return False
        if _says(frame.f_code):
            return True
        frame = frame.f_back
    return False


def _says(code: CodeType) -> bool:
    found = _known.get(id(code))
    if found is None or found[0]() is not code:
        if len(_known) >= _KNOWN:
            _known.clear()
        named = any(isinstance(value, tuple) and _WORD in value for value in code.co_consts)
        found = _known[id(code)] = weakref.ref(code), named and is_own_code(code.co_filename)
    return found[1]
