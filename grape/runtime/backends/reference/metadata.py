"""Finds what an operator would return, without running it on data.

torch's own operators run on stand-ins: tensors of the same layout, full of zeros, in memory of their own. That gives
the strides of the CPU's kernel exactly; fake tensors differ from it for some (broadcast `xlogy`, `copysign`,
rounding division; batch norm of transposed inputs). Fake tensors serve where a stand-in cannot: operators of other
libraries, whose Python may have side effects, and kernels that reject zeros (`multinomial`, factorizations).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_map_only

from ....model.call import Args, Kwargs
from ....tracing import Operator
from ..protocol import CaptureFailed
from .memory import bare, stand_in


@dataclass(frozen=True, slots=True)
class Probe:
    """The `results` of a trial run, and its tensor arguments: pairs of the real one and the one that stood for it."""

    results: object
    arguments: tuple[tuple[torch.Tensor, torch.Tensor], ...]


def probe(func: Operator, args: Args, kwargs: Kwargs) -> Probe:
    """Shapes, strides and types of what `func` returns. Arguments are not read or written; no random number is drawn.

    Raises what the operator raises for such arguments, and `CaptureFailed` where the result depends on data or cannot
    be known.
    """
    if func.namespace not in ("aten", "prims"):
        try:
            return _on_fakes(func, args, kwargs)
        except CaptureFailed:
            raise
        except Exception as error:
            raise CaptureFailed("GR405", f"{func} cannot be captured, its fake kernel fails: {error}") from error
    try:
        return _on_stand_ins(func, args, kwargs)
    except Exception as error:
        try:
            return _on_fakes(func, args, kwargs)
        except CaptureFailed:
            raise
        except Exception:
            # Both refuse: the arguments are wrong, and the kernel's message is the one an eager call gives.
            raise error from None


def _on_stand_ins(func: Operator, args: Args, kwargs: Kwargs) -> Probe:
    with bare(), torch.no_grad(), _generator_kept(func):
        pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        trial_args, trial_kwargs = _substitute(stand_in, pairs, args, kwargs)
        return Probe(func(*trial_args, **trial_kwargs), tuple(pairs.values()))


def _on_fakes(func: Operator, args: Args, kwargs: Kwargs) -> Probe:
    mode = FakeTensorMode()
    try:
        with torch.no_grad(), _quiet(), mode:
            pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
            trial_args, trial_kwargs = _substitute(mode.from_tensor, pairs, args, kwargs)
            return Probe(func(*trial_args, **trial_kwargs), tuple(pairs.values()))
    except DynamicOutputShapeException:
        raise CaptureFailed("GR103", f"the shape of what {func} returns depends on data") from None
    except DataDependentOutputException:
        raise CaptureFailed("GR101", f"{func} reads a value on the host") from None
    except (UnsupportedOperatorException, UnsupportedFakeTensorException) as error:
        raise CaptureFailed("GR405", f"{func} cannot be captured, it has no fake kernel: {error}") from None


@contextmanager
def _generator_kept(func: Operator) -> Iterator[None]:
    if torch.Tag.nondeterministic_seeded not in func.tags:
        yield
        return
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def _substitute(
    make: Callable[[torch.Tensor], torch.Tensor],
    pairs: dict[int, tuple[torch.Tensor, torch.Tensor]],
    args: Args,
    kwargs: Kwargs,
) -> tuple[Args, Kwargs]:
    def one(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in pairs:
            pairs[id(tensor)] = (tensor, make(tensor))
        return pairs[id(tensor)][1]

    return tree_map_only(torch.Tensor, one, (args, kwargs))  # type: ignore[no-any-return]


@contextmanager
def _quiet() -> Iterator[None]:
    """A fake kernel that fails logs its traceback; here failing is an answer."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
