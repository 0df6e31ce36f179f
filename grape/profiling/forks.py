"""Keeps what Grape leaves on the device from ending a process that is forked and has none: a data loader's worker."""

from __future__ import annotations

import functools
import gc
import os

import torch


@functools.cache
def spare_children() -> None:
    """From now on a forked process does not collect what was garbage before the fork.

    `torch.cuda.Event` selects its device when it is destroyed, and where there is none the process is aborted (torch
    2.11). Grape's timers hold such events, and some are part of cycles, which a collection in the child would find.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    if torch.cuda._is_in_bad_fork():
        gc.freeze()
