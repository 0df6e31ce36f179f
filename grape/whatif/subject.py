"""A call of a module that can be made again and again, on copies: nothing of the person's changes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from ..errors import UsageError

__all__ = ["Subject", "copy_of"]


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
                return list(_tensors(call(*self.args, **self.kwargs)))
        self.module.zero_grad(set_to_none=True)
        results = list(_tensors(call(*self.args, **self.kwargs)))
        torch.autograd.backward([_total(results)])
        gradients = (parameter.grad for parameter in self.module.parameters())
        return [*results, *(gradient for gradient in gradients if gradient is not None)]

    def seeded(self, seed: int) -> list[Tensor]:
        """`run` behind `manual_seed`; the random states are given back."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            return [tensor.detach().clone() for tensor in self.run()]

    def parts(self) -> Iterator[Tensor]:
        """Parameters and buffers."""
        yield from self.module.parameters()
        yield from self.module.buffers()

    def with_inputs(self, change: Callable[[Tensor], Tensor]) -> tuple[tuple[object, ...], dict[str, object]]:
        """Arguments whose tensors went through `change`."""
        args, kwargs = tree_map(
            lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, (self.args, self.kwargs)
        )
        return tuple(args), dict(kwargs)


def copy_of(subject: Subject) -> Subject:
    """With a module and tensors of its own. Raises `UsageError` for what cannot be copied."""
    try:
        module = copy.deepcopy(subject.module)
    except Exception as error:
        raise UsageError(
            f"{type(subject.module).__name__} cannot be copied, so nothing can be tried: {error}"
        ) from error
    args, kwargs = subject.with_inputs(_own)
    return Subject(module=module, args=args, kwargs=kwargs, device=subject.device, trains=subject.trains)


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _tensors(value: object) -> Iterable[Tensor]:
    leaves, _ = tree_flatten(value)
    return (leaf for leaf in leaves if isinstance(leaf, Tensor))


def _total(results: Iterable[Tensor]) -> Tensor:
    parts = [one.float().sum() for one in results if one.requires_grad and one.is_floating_point()]
    if not parts:
        raise UsageError("nothing that the module returns has a gradient; call its `eval()`, or use torch.no_grad()")
    return torch.stack(parts).sum()
