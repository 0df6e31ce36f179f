"""The numbers of autograd's nodes on a GPU: backward passes run in a thread of their own there, which counts apart."""

from __future__ import annotations

import torch

from grape.runtime.replaying.node_numbers import advance, in_backward, numbered

__all__ = ["DEVICE", "lead", "level"]

DEVICE = torch.device("cuda")


def lead() -> int:
    """How far this thread's numbers are ahead of the ones of backward passes."""
    theirs = in_backward(DEVICE, numbered)
    assert theirs is not None
    return numbered() - theirs


def level() -> None:
    """Both count on from the same number: a program adds up gradients in the order in which it did the last time."""
    before = numbered()
    ahead = lead()
    passing = numbered() - before  # numbers that a pass of ours takes of this thread
    if ahead > 0:
        in_backward(DEVICE, lambda: advance(ahead + passing))
    else:
        advance(-ahead)
