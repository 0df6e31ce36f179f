"""Function modes of Grape's that code cannot tell from none.

Some code of torch asks whether a call would be overridden, and takes another way then: with other bits
(`nn.MultiheadAttention`, `nn.TransformerEncoderLayer`), or the same way once more (`torch.nn.functional`), with frames
that tracebacks show and `stacklevel` counts. A mode that only watches must not change the answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import CodeType

import torch
from torch import overrides

_DISABLED = torch._C._disabled_torch_function_impl
_ASKED = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_real: dict[str, Callable[..., bool]] = {name: getattr(overrides, name) for name in _ASKED}


class UnseenMode(overrides.TorchFunctionMode):
    """A function mode that `torch.overrides.has_torch_function` and its like do not see while it is on the stack."""

    def join(self) -> None:
        overrides._push_mode(self)
        _replace(_real, _blind)

    def leave(self) -> bool:
        """False where another mode lies on top."""
        if overrides._get_current_function_mode() is not self:
            return False
        overrides._pop_mode()
        if not any(isinstance(mode, UnseenMode) for mode in overrides._get_current_function_mode_stack()):
            _replace(_blind, _real)
        return True

    @property
    def on_stack(self) -> bool:
        """Of this thread."""
        return any(mode is self for mode in overrides._get_current_function_mode_stack())

    def passed_by(self, code: CodeType) -> None:
        """Code of torch asked, and goes on as if there were no mode: it is not handed to this one."""

    def __enter__(self) -> UnseenMode:
        self.join()
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()


def _replace(those: dict[str, Callable[..., bool]], these: dict[str, Callable[..., bool]]) -> None:
    """Wherever torch has imported them to, also while a mode was there."""
    for names in _places.current():
        for asked in _ASKED:
            if names.get(asked) is those[asked]:
                names[asked] = these[asked]


class _Places:
    """The namespaces of modules that ask. To look through all modules takes a millisecond, twice in each traced call:
    that is done again once others were imported, which then come last.
    """

    def __init__(self) -> None:
        self._known: tuple[int, str, int] | None = None
        self._found: list[dict[str, object]] = []

    def current(self) -> list[dict[str, object]]:
        last = next(reversed(sys.modules))
        known = len(sys.modules), last, id(sys.modules[last])
        if known == self._known:
            return self._found
        # `torchvision` asks as well
        asking = [module for name, module in list(sys.modules.items()) if name.startswith("torch")]
        places = [getattr(module, "__dict__", {}) for module in asking]
        self._found = [names for names in places if not _ASKED_NAMES.isdisjoint(names)]
        half_made = any(getattr(names.get("__spec__"), "_initializing", False) for names in places)
        self._known = None if half_made else known
        return self._found


_ASKED_NAMES = frozenset(_ASKED)
_places = _Places()


def _is_overridden(args: Iterable[object]) -> bool:
    return _answer("has_torch_function", args, among=args)


def _is_overridden_by_one(value: object) -> bool:
    return _answer("has_torch_function_unary", value, among=(value,))


def _is_overridden_by_any(*values: object) -> bool:
    return _answer("has_torch_function_variadic", *values, among=values)


def _answer(name: str, *given: object, among: Iterable[object]) -> bool:
    """The answer of `name` to what it was `given`, without the unseen modes."""
    if torch.compiler.is_compiling():  # the compiler knows what that is, and would look into this
        return bool(_real[name](*given))
    unseen: list[UnseenMode] = []
    for mode in overrides._get_current_function_mode_stack():
        if not isinstance(mode, UnseenMode):
            return bool(_real[name](*given))
        unseen.append(mode)
    if not torch._C._is_torch_function_enabled():
        return False
    if any(map(_overrides, among)):
        return True
    code = sys._getframe(2).f_code
    for mode in unseen:
        mode.passed_by(code)
    return False


_blind: dict[str, Callable[..., bool]] = dict(
    zip(_ASKED, (_is_overridden, _is_overridden_by_one, _is_overridden_by_any), strict=True)
)


def _overrides(value: object) -> bool:
    kind = type(value)
    return kind is not torch.Tensor and getattr(kind, "__torch_function__", _DISABLED) is not _DISABLED
