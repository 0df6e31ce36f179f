"""Blocks that the person's code is in, as far as they bear on Grape's dispatch modes.

Some save all dispatch keys and put them back at their end (`inference_mode`, whatever its argument; what calls a
function that `torch.compile` was given): a mode that was popped between leaves its key behind, and no operator runs any
more (A10). In others a mode of the person's lies above Grape's, whose handler issues what Grape's see.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from threading import get_ident
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from .compiling import before_compiled
from .positions import is_grape_code
from .warned import warnings_of_the_caller

_GUARDS: list[Any] = [
    getattr(torch._C, name)
    for name in ("_InferenceMode", "_ForceDispatchKeyGuard", "_RestorePythonTLSSnapshot")
    if hasattr(torch._C, name)
]
_KEYS = (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot)
_is_included: Callable[[torch._C.DispatchKey], bool] = torch._C._dispatch_tls_is_dispatch_key_included


def drop_keys() -> None:
    """Have no operator look for a mode where there is none."""
    if not torch._C._len_torch_dispatch_stack() and _is_included(torch._C.DispatchKey.Python):
        for key in _KEYS:
            torch._C._dispatch_tls_set_dispatch_key_included(key, False)


_OTHERWISE: dict[str, Callable[..., object]] = {
    name: getattr(torch.linalg, name)
    for name in ("cond", "eigvals", "eigvalsh", "matrix_norm", "matrix_rank", "norm", "svdvals")
} | {"_engine_run_backward": torch.autograd.graph._engine_run_backward}
"""Functions that torch computes otherwise while any dispatch mode is on the stack, muted or not: it takes each tensor
for one of a subclass then, computes vectors beside values, and these have other last bits. Norms only of some orders;
backward passes only with nodes that ask for subclasses.
"""
_NODES = frozenset(
    {
        "ProdBackward0",
        "ProdBackward1",
        "CumprodBackward0",
        "OrmqrBackward0",
        "LinalgDetBackward0",
        "LinalgMatrixExpBackward0",
    }
)
"""Found with all samples that torch has for its own tests of operators (`op_db`, torch 2.11 and 2.13), on the CPU, in
first and second order, with and without a mode. The last one's bits are the same: its graph and strides are not."""
_FILLED = "MaskedFillBackward1"
"""As well, where the value that is filled in needs a gradient."""
_MADE = torch.Tensor.__new__
"""Makes a tensor through the dispatcher, and then an object of a subclass for it. Below any mode that tensor has an
object already, and torch raises a RuntimeError. It cannot be replaced: the type would not be the same afterwards. That
of subclasses can, where they come to it.
"""
_NONE = object()
_BY_SINGULAR_VALUES = (2, -2, "nuc")


def _differs(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call of one of them is computed otherwise."""
    if name == "_engine_run_backward":
        return _asks_for_subclasses([getattr(one, "grad_fn", None) or getattr(one, "node", None) for one in args[0]])
    if name not in ("norm", "matrix_norm"):
        return True
    order, dim = (kwargs.get(key, args[at] if len(args) > at else None) for at, key in ((1, "ord"), (2, "dim")))
    if not isinstance(order, (int, float, str)) or order not in _BY_SINGULAR_VALUES:
        return False
    of_vectors = isinstance(dim, int) or (dim is None and bool(args) and getattr(args[0], "ndim", 0) == 1)
    return name == "matrix_norm" or not of_vectors


def _asks_for_subclasses(nodes: list[Any]) -> bool:
    """Whether a graph has a node whose formula does, from these nodes on."""
    seen: set[Any] = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        kind = type(node).__name__
        if kind in _NODES or (kind == _FILLED and node.next_functions[1][0] is not None):
            return True
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
    return False


class _Otherwise:
    """Where modules have them. A look through all takes a millisecond: again once others were imported, which then come
    last.
    """

    def __init__(self) -> None:
        self._known: tuple[int, str] | None = None
        self._modules: list[ModuleType] = []

    def places(self) -> list[tuple[Any, str, Callable[..., object]]]:
        known = len(sys.modules), next(reversed(sys.modules))
        if known != self._known:
            self._modules = [one for one in list(sys.modules.values()) if _has(one)]
            self._known = known
        own = sys.modules.get("__main__")  # whose names come and go
        modules = {id(one): one for one in (*self._modules, *([own] if own is not None else []))}.values()
        return [(m, name, f) for m in modules for name, f in _OTHERWISE.items() if m.__dict__.get(name) is f]


_otherwise = _Otherwise()


def _has(module: object) -> bool:
    names = getattr(module, "__dict__", {})
    return isinstance(module, ModuleType) and any(names.get(name) is f for name, f in _OTHERWISE.items())


def _aside(function: Callable[..., object], name: str, muted: bool = False) -> Callable[..., object]:
    """`muted`: only where the mode is, so that the operator does not come to it, and raises as it is on the stack."""

    @wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        try:
            mode = _get_current_dispatch_mode()
            if torch._C._len_torch_dispatch_stack() != 1 or not isinstance(mode, OwnMode):
                return function(*args, **kwargs)
            if _is_included(torch._C.DispatchKey.Python) if muted else not _differs(name, args, kwargs):
                return function(*args, **kwargs)
            with warnings_of_the_caller():
                return mode.step_aside(partial(function, *args, **kwargs))
        except BaseException as error:
            while error.__traceback__ is not None and is_grape_code(error.__traceback__.tb_frame.f_code.co_filename):
                error.__traceback__ = error.__traceback__.tb_next
            raise

    return call


def _of_tensors() -> list[Any]:
    """All subclasses that are not torch's own."""
    classes: list[Any] = [torch.Tensor]
    for one in classes:
        classes += [sub for sub in type.__subclasses__(one) if sub not in classes]
    return [one for one in classes if not f"{one.__module__}.".startswith("torch.")]


def _maker(kind: Any) -> Callable[..., object] | None:
    """Its `__new__`, where that is Tensor's, or one of its own that calls another by that name."""
    own = vars(kind).get("__new__", _NONE)
    if own is _NONE:
        return _MADE if kind.__new__ is _MADE else None
    function = own.__func__ if isinstance(own, staticmethod) else own
    return function if isinstance(function, FunctionType) and "__new__" in function.__code__.co_names else None


class Subclasses:
    """Of each that is there at `watch` the `__new__` is called by `aside`, until `rest`."""

    def __init__(self, aside: Callable[[Callable[..., object]], Callable[..., object]]) -> None:
        self._aside = aside
        self._patched: list[tuple[ref[Any], object, object]] = []

    def watch(self) -> None:
        for kind, maker in [(kind, _maker(kind)) for kind in _of_tensors()]:
            self._patch(kind, maker)

    def rest(self) -> None:
        while self._patched:
            known, original, patch = self._patched.pop()
            kind = known()
            if kind is None or vars(kind).get("__new__") is not patch:
                continue
            if original is _NONE:
                del kind.__new__
            else:
                kind.__new__ = original

    def _patch(self, kind: Any, maker: Callable[..., object] | None) -> None:
        if maker is None:
            return
        original, patch = vars(kind).get("__new__", _NONE), staticmethod(self._aside(maker))
        try:
            kind.__new__ = patch
        except (AttributeError, TypeError):  # a class that refuses attributes
            return
        self._patched.append((ref(kind), original, patch))


class Blocks:
    """Those that were entered since somebody watches, and are not over yet."""

    def __init__(self) -> None:
        self._watching = 0
        self._patched: list[tuple[Any, str, object]] = []
        self._functions: list[tuple[Any, str, Callable[..., object]]] = []
        self._uncompiled: Callable[[], None] = lambda: None
        self._subclasses = Subclasses(partial(_aside, name="__new__"))
        self._guards: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """With each, the thread that entered it. The compiler lets some go without leaving them."""
        self._modes: list[tuple[object, int]] = []

    @property
    def saves_keys(self) -> bool:
        """True where this thread is in a block that puts the dispatch keys back at its end."""
        return bool(self._guards) and get_ident() in list(self._guards.values())

    @property
    def in_mode(self) -> bool:
        """True where this thread is in a dispatch mode of the person's, entered above one of Grape's."""
        return bool(self._modes) and any(thread == get_ident() for _, thread in self._modes)

    def watch(self) -> None:
        """See blocks begin and end, until `unwatch` is called as often."""
        self._watching += 1
        if self._patched:
            return
        for guard in _GUARDS:
            self._patch(guard, self._enters_guard, self._leaves_guard)
        self._patch(TorchDispatchMode, self._enters_mode, self._leaves_mode)

        self._patched.append((HigherOrderOperator, "__call__", HigherOrderOperator.__call__))
        HigherOrderOperator.__call__ = _aside(HigherOrderOperator.__call__, "__call__", muted=True)  # type: ignore[method-assign]
        self._functions = _otherwise.places()
        for module, name, function in self._functions:
            setattr(module, name, _aside(function, name))
        self._subclasses.watch()
        self._uncompiled = before_compiled(self._give_functions_back)

    def unwatch(self) -> None:
        self._watching -= 1
        self._rest()

    def _rest(self) -> None:
        """What a block saved it puts back when it ends, so that none is left unseen."""
        if self._watching or self._guards or self._modes:
            return
        while self._patched:
            setattr(*self._patched.pop())
        self._subclasses.rest()
        self._uncompiled()
        self._give_functions_back()

    def _give_functions_back(self) -> None:
        """Also before the compiler comes, which knows them by identity."""
        while self._functions:
            setattr(*self._functions.pop())

    def _patch(self, kind: Any, enters: Callable[[Any], None], leaves: Callable[[Any], None]) -> None:
        begin, end = kind.__enter__, kind.__exit__

        def __enter__(one: Any) -> object:
            result = begin(one)
            enters(one)
            return result

        def __exit__(one: Any, *error: Any) -> object:
            try:
                return end(one, *error)
            finally:
                leaves(one)

        for name, original, function in (("__enter__", begin, __enter__), ("__exit__", end, __exit__)):
            self._patched.append((kind, name, original))
            setattr(kind, name, function)

    def _enters_guard(self, guard: object) -> None:
        self._guards[guard] = get_ident()

    def _leaves_guard(self, guard: object) -> None:
        self._guards.pop(guard, None)
        drop_keys()
        self._rest()

    def _enters_mode(self, mode: object) -> None:
        if not isinstance(mode, OwnMode):
            self._modes.append((mode, get_ident()))

    def _leaves_mode(self, mode: object) -> None:
        for at in range(len(self._modes) - 1, -1, -1):
            if self._modes[at][0] is mode:
                del self._modes[at]
                self._rest()
                return


blocks = Blocks()


class OwnMode(TorchDispatchMode):
    """A dispatch mode of Grape's. It is given higher-order operators as well: where it was not, they would raise."""

    supports_higher_order_operators = True

    def step_aside(self, call: Callable[[], object]) -> object:
        """Run one of `_OTHERWISE` for the person. This mode alone is on the stack."""
        return call()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Do not have torch wrap the handler for the compiler: that would import it, which takes a second."""
        return False

    def __enter__(self) -> Any:
        blocks.watch()
        try:
            return super().__enter__()  # type: ignore[no-untyped-call]
        except BaseException:
            blocks.unwatch()
            raise

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)  # type: ignore[no-untyped-call]
        finally:
            blocks.unwatch()
