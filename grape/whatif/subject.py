"""A call of a module that can be made again and again, on copies."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..errors import UsageError
from ..render.units import one_line

_MOST = 10_000
"""Objects that are looked at in the arguments of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """`module(*args, **kwargs)`, with the backward pass of its results where it `trains`. `call` stands for the module
    where something else calls it, as a compiled function does.
    """

    module: nn.Module
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    device: torch.device
    trains: bool
    call: Callable[..., object] | None = None

    def run(self) -> list[Tensor]:
        """The tensors that it returns, and behind them the gradients that it leaves."""
        call = self.module if self.call is None else self.call
        if not self.trains:
            with torch.no_grad():
                return tensors_in(call(*self.args, **self.kwargs))
        self.module.zero_grad(set_to_none=True)
        results = tensors_in(call(*self.args, **self.kwargs))
        torch.autograd.backward([_total(results)])
        gradients = (parameter.grad for parameter in self.module.parameters())
        return [*results, *(gradient for gradient in gradients if gradient is not None)]

    def seeded(self, seed: int) -> list[Tensor]:
        """Copies of the results of `run`, with generators that were set to `seed`."""
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index or 0].manual_seed(seed)
        return [tensor.detach().clone() for tensor in self.run()]

    def parts(self) -> Iterator[Tensor]:
        """Parameters and buffers."""
        yield from self.module.parameters()
        yield from self.module.buffers()

    def with_inputs(self, change: Callable[[Tensor], Tensor]) -> tuple[tuple[object, ...], dict[str, object]]:
        """Arguments whose tensors went through `change`."""
        given = self.args, self.kwargs
        args, kwargs = tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, given)
        return tuple(args), dict(kwargs)


def copy_of(subject: Subject) -> Subject:
    """With a module and arguments of its own. Raises `UsageError` for what cannot be copied."""
    kind = type(subject.module).__name__
    try:
        module = copy.deepcopy(subject.module)
    except Exception as error:
        raise UsageError(f"{kind} cannot be copied, so nothing can be tried: {one_line(str(error))}") from error
    given = subject.args, dict(subject.kwargs)
    known = {id(leaf): _own(leaf) for leaf in tree_leaves(given) if isinstance(leaf, Tensor)}
    try:
        args, kwargs = copy.deepcopy(given, known)
    except Exception as error:
        raise UsageError(f"an argument cannot be copied, so nothing can be tried: {one_line(str(error))}") from error
    return Subject(module=module, args=args, kwargs=kwargs, device=subject.device, trains=subject.trains)


def looks(value: object) -> list[object]:
    """What tells that a call changed its arguments: lengths of containers, shapes and versions of tensors, also those
    that objects hold.
    """
    found: list[object] = []
    pending, seen = [value], set[int]()
    while pending and len(seen) < _MOST:
        one = pending.pop()
        if id(one) in seen or isinstance(one, nn.Module | type):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            found.append((one.shape, one._version if not one.is_inference() else 0))
        elif isinstance(one, Mapping):
            found.append(len(one))
            pending += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            found.append(len(one))
            pending += one
        elif hasattr(one, "__dict__"):
            pending += vars(one).values()
    return found


def tensors_in(value: object) -> list[Tensor]:
    """In containers, and in what torch knows as one."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _total(results: Iterable[Tensor]) -> Tensor:
    parts = [one.abs().sum() if one.is_complex() else one.float().sum() for one in results if one.requires_grad]
    if not parts:
        raise UsageError("nothing that the module returns has a gradient; call its `eval()`, or use torch.no_grad()")
    return torch.stack(parts).sum()
