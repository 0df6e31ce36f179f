"""Hooks: what torch calls around modules, tensors, nodes of gradients and optimizers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch.nn.modules import module as _modules
from torch.optim import optimizer as _optimizer
from torch.utils.hooks import RemovableHandle

HOOKS = frozenset(
    {
        "_backward_pre_hooks",
        "_backward_hooks",
        "_forward_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
    }
)
"""The attributes in which a module keeps its hooks."""
HOOKS_OF_ALL_MODULES, HOOKS_OF_ALL_OPTIMIZERS = (
    tuple(hooks for name, hooks in vars(where).items() if name.startswith("_global_") and isinstance(hooks, dict))
    for where in (_modules, _optimizer)
)
"""Of calls, backwards and registrations, whatever this version of torch has. While there is one, nothing is replayed:
hooks run around each module, and a replay runs none."""


def hooks_of(tensor: torch.Tensor) -> list[object]:
    """The hooks that autograd calls with a tensor's gradient."""
    found = (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None))
    return [hooks for hooks in found if hooks]


@contextmanager
def unseen_handles() -> Iterator[list[RemovableHandle]]:
    """Of hooks of our own, which are to be put into the list: their numbers are given back, because guards look for
    hooks where the next number is another one. Not where another thread took one meanwhile.
    """
    number, handles = RemovableHandle.next_id, list[RemovableHandle]()
    yield handles
    if RemovableHandle.next_id == number + len(handles):
        RemovableHandle.next_id = number


def is_node_hooked(tensor: torch.Tensor) -> bool:
    """True where there are hooks on the node that accumulates a parameter's gradient, which ends when nobody holds it.

    A hook of our own, taken back at once, lands among the others: torch has no other way to ask.
    """
    if not (tensor.requires_grad and tensor.is_leaf):
        return False
    with torch.inference_mode(False):
        node = torch.autograd.graph.get_gradient_edge(tensor).node
    with unseen_handles() as handles:
        handles += node.register_prehook(_no_hook), node.register_hook(_no_hook)
    found = [handle.hooks_dict_ref() for handle in handles]
    for handle in handles:
        handle.remove()
    return any(found)


def _no_hook(*gradients: object) -> None: ...


def new_hooks(found: Iterable[object], known: Collection[int]) -> bool:
    """True where one of `found` holds a hook and is not among `known`, by identity."""
    return any(hooks and id(hooks) not in known for hooks in found)
