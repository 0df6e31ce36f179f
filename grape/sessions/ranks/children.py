"""How many processes were forked off in a cell: its work may have run in them, where nothing of Grape's looks."""

from __future__ import annotations

import os

_forked = 0
_hooked = False


def count_children() -> None:
    """From now on."""
    global _forked, _hooked
    _forked = 0
    if not _hooked:
        _hooked = True  # hooks of forks cannot be taken back; this one counts
        os.register_at_fork(after_in_parent=_one_more)


def children() -> int:
    return _forked


def _one_more() -> None:
    global _forked
    _forked += 1
