"""Does a rewritten cell compute what the cell computed? Both run on copies of the namespace, from one random state."""

from __future__ import annotations

import contextlib
import io
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..rewrite import Declined
from ..rewrite.source import mask
from ..runtime.replaying.node_numbers import unnumbered
from .copies import copied, randomness_kept
from .safety import Unsafe, check_source

MOST_BYTES = 256 << 20
"""Tensors that are copied for one verification, twice each."""

_FILENAME = "<grape: verification>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The outcome of running both. "different" means that the rewrite must not be offered, "close" that results are
    within the tolerance that was asked for; `why` has the largest difference.
    """

    result: Literal["identical", "close", "not verified", "different"]
    why: str = ""

    def __str__(self) -> str:
        return f"{self.result}: {self.why}" if self.why else self.result


def verify(
    old: str,
    new: str,
    namespace: Mapping[str, object],
    *,
    functions: str = "",
    most_bytes: int = MOST_BYTES,
    tolerance: float = 0.0,
    lengthened: bool = False,
) -> Comparison:
    """Run both sources on copies of what they use of `namespace`, and compare every name, tensor bits and output.

    With a `tolerance`, floating-point tensors, numbers and lists of them may differ by that share of their largest
    value. Where lists of indices may be `lengthened`, what `new` has behind those of `old` does not count.

    `functions` is source of definitions that `new` runs with, in the place of those that `namespace` holds.

    Runs nothing that may do more than compute; see `safety`. Nothing of `namespace` is written, the random states and
    the grad mode are left as they were. Names that only the rewrite binds do not count.
    """
    try:
        codes, trees = [], []
        for source in (old, new):
            masked = mask(source)
            if isinstance(masked, Declined):
                raise Unsafe(str(masked))
            if any("%%" not in line for line in masked.lines):
                raise Unsafe("the cell has magic or shell lines")
            trees.append(check_source(masked.text, namespace))
            codes.append(compile(masked.text, _FILENAME, "exec", dont_inherit=True))
        replaced = check_source(functions, namespace)
        spaces = [copied([*trees, replaced], namespace, most_bytes) for _ in codes]
        exec(compile(replaced, _FILENAME, "exec", dont_inherit=True), spaces[1])
    except Unsafe as unsafe:
        return Comparison(result="not verified", why=str(unsafe))
    except torch.OutOfMemoryError:
        return Comparison(result="not verified", why="there is no memory for copies")
    with _left_as_it_was(), unnumbered():
        before, after = (_run(code, space) for code, space in zip(codes, spaces, strict=True))
    return _compared(before, after, _Close(tolerance, lengthened))


@dataclass(frozen=True, slots=True)
class _Ran:
    space: dict[str, object]
    output: str
    error: BaseException | None


def _run(code: types.CodeType, space: dict[str, object]) -> _Ran:
    output = io.StringIO()
    error: BaseException | None = None
    with _left_as_it_was(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        try:
            exec(code, space)
        except (Exception, KeyboardInterrupt) as raised:
            error = raised
    return _Ran(space, output.getvalue(), error)


def _compared(before: _Ran, after: _Ran, close: _Close) -> Comparison:
    if before.error is not None:
        why = f"the cell raised {type(before.error).__name__} when it ran again"
        return Comparison(result="not verified", why=why)
    if isinstance(after.error, (KeyboardInterrupt, torch.OutOfMemoryError)):
        return Comparison(result="not verified", why=type(after.error).__name__)
    if after.error is not None:
        return Comparison(result="different", why=f"the rewrite raised {type(after.error).__name__}: {after.error}")
    if before.output != after.output:
        return Comparison(result="different", why="it printed something else")
    for name, value in before.space.items():
        if name.startswith("__"):
            continue
        if name not in after.space:
            return Comparison(result="different", why=f"`{name}` is missing")
        if _lost_gradients(value, after.space[name]):
            return Comparison(result="not verified", why=f"`{name}` carries no gradients any more")
        try:
            if not _same(value, after.space[name], close):
                return Comparison(result="different", why=f"`{name}` differs")
        except Unsafe as unsafe:
            return Comparison(result="not verified", why=f"`{name}` is a {unsafe}, which has no comparison")
    return Comparison(result="close", why=str(close)) if close.largest is not None else Comparison(result="identical")


def _lost_gradients(one: object, other: object) -> bool:
    """Equal bits are not all where a later cell may call `backward`."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.requires_grad and not other.requires_grad
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return any(map(_lost_gradients, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return any(_lost_gradients(one[key], other[key]) for key in one.keys() & other.keys())
    return False


@dataclass(slots=True)
class _Close:
    """What tensors may differ by, as a share of their largest value; 0 for nothing. `largest` is what they did; None
    where their bits are equal. `lengthened`: tensors of int64 may have more behind what is compared.
    """

    tolerance: float
    lengthened: bool = False
    largest: float | None = None

    def holds(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        if not self.tolerance:
            return False
        wide, others = one.double(), other.double()
        finite = wide.isfinite()
        if not torch.equal(finite, others.isfinite()):
            return False
        if not torch.equal(wide[~finite].nan_to_num(), others[~finite].nan_to_num()):
            return False
        scale = float(wide[finite].abs().max()) if bool(finite.any()) else 0.0
        apart = float((wide[finite] - others[finite]).abs().max()) if bool(finite.any()) else 0.0
        if apart > self.tolerance * scale:
            return False
        self.largest = max(self.largest or 0.0, apart / scale if scale else 0.0)
        return True

    def __str__(self) -> str:
        return f"results differ by up to {self.largest:.1e} of their largest value, within {self.tolerance:g}"


def _same(one: Any, other: Any, close: _Close) -> bool:
    """Equal types, values and bits, or values that are close. Raises `Unsafe` for what cannot be compared."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return _same_tensor(one, other, close)
    if isinstance(one, list) and one and all(isinstance(item, float) for item in (*one, *other)):
        return len(one) == len(other) and _same_tensor(_numbers(one), _numbers(other), close)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_same(a, b, close) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key], close) for key in one)
    if isinstance(one, float):
        return _same_tensor(_numbers([one]), _numbers([other]), close)
    if isinstance(one, (torch.nn.Module, torch.optim.Optimizer)):
        return _same(dict(one.state_dict()), dict(other.state_dict()), close)
    if isinstance(one, (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)):
        return one is other or isinstance(one, types.FunctionType)
    if isinstance(one, (torch.utils.data.DataLoader, torch.utils.data.Dataset)):
        return True
    if isinstance(one, (bool, int, complex, str, bytes, set, range, torch.device, torch.dtype, type(None))):
        return bool(one == other)
    if isinstance(one, (enumerate, zip, map, filter)):
        return True
    raise Unsafe(type(one).__name__)


def _numbers(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.double)


def _same_tensor(one: torch.Tensor, other: torch.Tensor, close: _Close) -> bool:
    if close.lengthened and one.dtype is other.dtype is torch.long and one.ndim == other.ndim:
        other = other[tuple(slice(length) for length in one.shape)]
    if (one.shape, one.dtype, one.device, one.layout) != (other.shape, other.dtype, other.device, other.layout):
        return False
    if one.layout is not torch.strided:
        raise Unsafe("sparse tensor")
    flat = [tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1) for tensor in (one, other)]
    if not flat[0].numel():
        return True
    if torch.equal(flat[0].view(torch.uint8), flat[1].view(torch.uint8)):
        return True
    return one.is_floating_point() and close.holds(flat[0], flat[1])


@contextlib.contextmanager
def _left_as_it_was() -> Iterator[None]:
    """The random states of Python, NumPy and torch, and the grad mode."""
    with randomness_kept(), torch.set_grad_enabled(torch.is_grad_enabled()):
        yield
