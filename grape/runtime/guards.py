"""What a region reads besides its arguments, and whether it is still as it was.

The walk starts at the callable and follows everything its own code can name: closures, globals that the code mentions
(also names that it only sets, and names that are not defined yet), `self`, modules with all their attributes, and other
functions and classes of the person. Library functions are not followed; what they read from a module or an object that
was reached is. Tensors found on the way are the *sources* of storages that a
trace reads from outside; a storage without a source cannot be guarded, and the region is refused.
"""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import dis
import functools
import os
import sys
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

import torch
from torch.nn.modules import module as _modules
from torch.optim import optimizer as _optimizer
from torch.utils.hooks import RemovableHandle

from ..tracing import is_own_code
from .tensor_guards import compiled_check
from .trampoline import written_code

__all__ = ["GuardSet", "TooLarge"]

_HOOKS = frozenset(
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
_UNREAD = frozenset(vars(torch.nn.Module())) - {"training", "_parameters", "_buffers", "_modules"}
"""Bookkeeping of every module: hooks (guarded by the number of the next handle) and notes for `state_dict`."""
_GLOBAL_HOOKS: tuple[dict[int, Any], ...] = (
    _modules._global_forward_hooks,
    _modules._global_forward_pre_hooks,
    _modules._global_forward_hooks_always_called,
    _modules._global_forward_hooks_with_kwargs,
)
_OPTIMIZER_HOOKS: tuple[dict[Any, Any], ...] = (
    _optimizer._global_optimizer_pre_hooks,
    _optimizer._global_optimizer_post_hooks,
)
_CLASS_NOTES = frozenset(
    [
        "__dict__",
        "__weakref__",
        "__doc__",
        "__module__",
        "__annotations__",
        "__abstractmethods__",
        "_abc_impl",
        "__parameters__",
        "__orig_bases__",
        "__firstlineno__",
        "__static_attributes__",
        "__annotations_cache__",
        "__slotnames__",
    ]
)
_CONTENTS: dict[type, Callable[[Any], Any]] = {
    collections.deque: tuple,
    bytearray: bytes,
    array.array: bytes,
}
"""Containers that are neither lists nor dicts, and what their contents are."""
_CONTAINERS = frozenset({dict, list, set, collections.defaultdict, collections.OrderedDict, collections.deque})
_GLOBAL_INSTRUCTIONS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
_CALLABLES = (types.FunctionType, types.MethodType, functools.partial)
_LIMIT = 60_000
_LEAVES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, types.ModuleType)


class TooLarge(Exception):
    """The callable reaches more state than can be guarded at a bounded cost. `where` names what it was reached by."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where} holds more state than can be guarded")
        self.where = where


class GuardSet:
    """A snapshot of the state that `root` and the objects in `more` can read; `holds` says whether it is unchanged.

    `sources` maps a storage's identity to the tensor that it was found through.
    """

    def __init__(self, root: Any, more: tuple[Any, ...] = ()) -> None:
        self.sources: dict[int, tuple[str, torch.Tensor]] = {}
        self._dicts: list[dict[Any, Any]] = []
        self._lists: list[list[Any]] = []
        self._modules: list[tuple[dict[str, Any], Any]] = []
        self._places_of: dict[int, str] = {}
        self.culprits: list[str] = []
        """By which names the code reaches what `difference` last found to be changed."""
        self._items: list[tuple[dict[str, Any], str, Any]] = []
        self._attributes: list[tuple[Any, str, Any]] = []
        self._codes: list[tuple[types.FunctionType, types.CodeType]] = []
        self._states: list[tuple[Callable[[], Any], Any]] = []
        self._objects: list[Any] = []
        self._tensors: list[torch.Tensor] = []
        self._names: list[str] = []
        self._seen: dict[int, Any] = {}
        self._roots: tuple[Any, ...] = (root, *more)
        self._pending: list[tuple[Any, str]] = [(one, "") for one in reversed(self._roots)]
        self._pending += [(hooks, "hooks of all modules") for hooks in _GLOBAL_HOOKS if hooks]
        for hooks in _OPTIMIZER_HOOKS:
            self._dict(hooks, "hooks of all optimizers")
        while self._pending:
            self._visit(*self._pending.pop())
        self._let_go(root)
        self._snapshot()

    def _let_go(self, root: Any) -> None:
        """A module is the person's: guarding it must not keep it alive. Its graphs die with it."""
        self._roots = ()
        self._root: weakref.ref[torch.nn.Module] | None = None
        if isinstance(root, torch.nn.Module):
            self._root = weakref.ref(root)
            self._root_class = type(root)
            self._objects = [value for value in self._objects if value is not root]
            self._seen[id(root)] = None

    def owns(self, tensor: torch.Tensor) -> bool:
        """True for a tensor that was found itself, not through another view of its memory."""
        return self.reaches(tensor)

    def reaches(self, value: object) -> bool:
        """Whether this very object was found, so that what it holds is guarded."""
        return self._seen.get(id(value)) is value

    def has_hooked_nodes(self) -> bool:
        """Whether somebody holds the node of a gradient and has a hook on it, which ends with the node, unguarded."""
        return any(map(_is_node_hooked, self._tensors))

    def leaves(self) -> list[tuple[str, torch.Tensor]]:
        """Name and tensor of all that were found and may have a gradient."""
        named = zip(self._names, self._tensors, strict=True)
        return [(name, tensor) for name, tensor in named if tensor.is_leaf and _may_have_gradient(tensor)]

    def _snapshot(self) -> None:
        self._filled = [d for d in self._dicts if d]  # an empty one is guarded by its length
        self._saved = tuple(self._values())
        self._sizes = self._measure()
        self._places = self._locate()
        self._compiled = compiled_check(self._tensors)
        self._handles = RemovableHandle.next_id
        self._classes = [*map(type, self._objects)]

    def _values(self) -> Iterator[Any]:
        attributes = [attributes_of(names) for names, attributes_of in self._modules]
        return chain.from_iterable([*attributes, *map(dict.values, self._filled), *self._filled, *self._lists])

    def _measure(self) -> list[int]:
        return [*map(len, self._dicts), *map(len, self._lists), *[len(names) for names, _ in self._modules]]

    def _locate(self) -> tuple[Any, ...]:
        """Address, shape, stride and dtype of every tensor; where gradients may be recorded, whether it needs one."""
        tensors = self._tensors
        kind = torch.Tensor
        flags = [*map(_needs_grad, tensors)] if torch.is_grad_enabled() else None
        places = [*map(kind.data_ptr, tensors)], [*map(kind.size, tensors)], [*map(kind.stride, tensors)]
        return *places, [*map(_dtype, tensors)], flags

    def holds(self) -> bool:
        """True where nothing that was found has changed since."""
        if RemovableHandle.next_id != self._handles:
            return self.difference() is None
        try:
            return self._unchanged() or self._same_values()
        except KeyError:  # an attribute of a module is gone
            return False

    def _unchanged(self) -> bool:
        return (
            (self._root is None or type(self._root()) is self._root_class)
            and self._measure() == self._sizes
            and all(map(is_, self._values(), self._saved))
            and all(names.get(name, self) is value for names, name, value in self._items)
            and all(_read(owner, name, self) is value for owner, name, value in self._attributes)
            and all(written_code(function) is code for function, code in self._codes)
            and all(state() == then for state, then in self._states)
            and [*map(type, self._objects)] == self._classes
            and (self._in_place() or self._locate() == self._places)
        )

    def in_memory(self) -> bool:
        """Whether every tensor lies where it did: what a graph reads must exist before it is launched."""
        return bool([*map(torch.Tensor.data_ptr, self._tensors)] == self._places[0])

    def _in_place(self) -> bool:
        """`_locate() == _places` by torch's compiled guards, which may say no under other modes than the snapshot's."""
        return self._compiled is not None and self.in_memory() and bool(self._compiled(*self._tensors))

    def _same_values(self) -> bool:
        """Equal values under other identities (``self.eps = 1e-5`` again) hold as well; remember the new ones."""
        if self.difference() is not None:
            return False
        self._snapshot()
        return True

    def difference(self) -> str | None:
        """What has changed, in words; None where nothing has."""
        self.culprits = []
        try:
            return self._difference()
        except KeyError as name:
            return f"the attribute {name} of a module"

    def _blame(self, holder: Any) -> None:
        where = self._places_of.get(id(holder))
        if where and where not in self.culprits:
            self.culprits.append(where)

    def _holder_of(self, number: int) -> Any:
        """The container of the value that stands there among `_values`."""
        holders = [attributes for attributes, _ in self._modules] + self._filled + self._filled + self._lists
        lengths = [len(read(attributes)) for attributes, read in self._modules]
        lengths += [*map(len, self._filled), *map(len, self._filled), *map(len, self._lists)]
        for holder, length in zip(holders, lengths, strict=True):
            if number < length:
                return holder
            number -= length
        return None

    def _difference(self) -> str | None:
        if RemovableHandle.next_id != self._handles:
            known = {id(hooks) for hooks in self._dicts}  # a change of these is found below
            for owner in (*self._seen.values(), self._root and self._root()):
                if isinstance(owner, torch.nn.Module) and _new_hooks(map(vars(owner).get, _HOOKS), known):
                    return f"a hook on {type(owner).__name__}"
            if any(_new_hooks(_hooks_of(tensor), known) for tensor in self._tensors):
                return "a hook on a tensor"
            if self.has_hooked_nodes():
                return "a hook on a gradient's node"
            if _new_hooks(_GLOBAL_HOOKS, known):
                return "a hook on all modules"
            self._handles = RemovableHandle.next_id
        root_changed = self._root is not None and type(self._root()) is not self._root_class
        if root_changed or [*map(type, self._objects)] != self._classes:
            return "the class of an object that the region reads"
        holders = [*self._dicts, *self._lists, *[attributes for attributes, _ in self._modules]]
        for holder, now_has, had in zip(holders, self._measure(), self._sizes, strict=True):
            if now_has != had:
                self._blame(holder)
                return "the number of attributes or items of an object that the region reads"
        what = None
        for number, (now, then) in enumerate(zip(self._values(), self._saved, strict=True)):
            if now is not then and not _equal(now, then):
                self._blame(self._holder_of(number))
                changed = f"({type(then).__name__} {_short(then)} -> {_short(now)})"
                what = what or f"a value that the region reads {changed}"
        if what is not None:
            return what
        for names, name, value in self._items:
            if names.get(name, self) is not value and not _equal(names.get(name, self), value):
                self.culprits = [name]
                return f"the global '{name}'"
        for owner, name, value in self._attributes:
            if _read(owner, name, self) is not value and not _equal(_read(owner, name, self), value):
                return f"'{name}' of {getattr(owner, '__qualname__', type(owner).__name__)}"
        for function, code in self._codes:
            if written_code(function) is not code:
                return f"the code of {function.__qualname__}"
        for state, then in self._states:
            if state() != then:
                return "a set, an array or a function's attributes that the region reads"
        if self._locate() != self._places:
            return "the memory of a parameter, buffer or other tensor that the region reads"
        return None

    def _visit(self, value: Any, where: str) -> None:
        if isinstance(value, _LEAVES) or id(value) in self._seen:
            return
        if len(self._seen) > _LIMIT:
            raise TooLarge(where)
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            self._tensor(value, where)
        elif isinstance(value, types.FunctionType):
            self._function(value, where)
        elif isinstance(value, types.MethodType):
            self._pending += [(value.__self__, where), (value.__func__, where)]
        elif isinstance(value, type):
            self._class(value, where)
        elif isinstance(value, dict):
            self._dict(value, where)
        elif isinstance(value, (list, tuple)):
            self._sequence(value, where)
        elif isinstance(value, (set, frozenset)):
            self._watch(functools.partial(_contents_of_set, value))
            self._pending += [(item, where) for item in value]
        elif type(value) in _CONTENTS:
            self._watch(functools.partial(_CONTENTS[type(value)], value))
            if isinstance(value, collections.deque):
                self._pending += [(item, where) for item in value]
        elif type(value).__module__ == "numpy":
            if isinstance(getattr(value, "nbytes", None), int) and value.nbytes > 1 << 16:
                raise TooLarge(where)
            if hasattr(value, "tobytes"):
                self._watch(value.tobytes)
        elif isinstance(value, property):
            self._pending += [(value.fget, where), (value.fset, where)]
        elif isinstance(value, (staticmethod, classmethod)):
            self._pending.append((value.__func__, where))
        elif isinstance(value, functools.partial):
            self._pending += [(value.func, where), (value.args, where), (value.keywords, where)]
        elif isinstance(value, weakref.ref):
            self._pending.append((value(), where))
        elif isinstance(value, contextvars.ContextVar):
            self._watch(functools.partial(_contents_of_variable, value))
            self._pending.append((value.get(None), where))
        elif isinstance(value, torch.jit.ScriptModule) or _has_position(type(value)):
            raise TooLarge(where or type(value).__name__)
        elif isinstance(value, torch.nn.Module):
            self._module(value, where)
        else:
            self._object(value, where)

    def _watch(self, state: Callable[[], Any]) -> None:
        self._states.append((state, state()))

    def _tensor(self, tensor: torch.Tensor, where: str) -> None:
        if tensor.layout is torch.strided:
            self._tensors.append(tensor)
            self._names.append(where)
            self._dict(tensor.__dict__, where)
            for hooks in _hooks_of(tensor):
                self._pending.append((hooks, f"{where} hooks"))
            self.sources.setdefault(tensor.untyped_storage()._cdata, (where, tensor))

    def _function(self, function: types.FunctionType, where: str) -> None:
        if not _is_followed(function.__code__) and not any(function is root for root in self._roots):
            self._wrapped(function, where)
            return
        self._codes.append((function, written_code(function)))
        for name in ("__defaults__", "__kwdefaults__"):
            self._attributes.append((function, name, getattr(function, name)))
        self._pending.append((function.__defaults__, where))
        self._pending.append((function.__kwdefaults__, where))
        for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=False):
            try:
                contents = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            self._attributes.append((cell, "cell_contents", contents))
            self._pending.append((contents, name))
        self._watch(functools.partial(_attributes_of, function))
        for name in _attributes_of(function):
            self._items.append((function.__dict__, name, function.__dict__[name]))
            self._pending.append((function.__dict__[name], name))
        code = written_code(function)
        names, every = _names(code)
        for name in names:
            value = function.__globals__.get(name, self)
            self._items.append((function.__globals__, name, value))
            if isinstance(value, types.ModuleType):
                self._library(value, every, {id(value)})
            elif value is not self:
                self._pending.append((value, name))

    def _wrapped(self, function: types.FunctionType, where: str) -> None:
        """What a library's function was made around: with `@torch.no_grad()` that is the person's own code."""
        for cell in function.__closure__ or ():
            contents = _read(cell, "cell_contents", None)
            if isinstance(contents, _CALLABLES):
                self._attributes.append((cell, "cell_contents", contents))
                self._pending.append((contents, where))

    def _library(self, module: types.ModuleType, names: frozenset[str], above: set[int]) -> None:
        """What code that mentions these names can read from an imported module (``config.SCALE``)."""
        own = _is_own_module(module) or module is os
        for name in names.intersection(vars(module)):
            value = vars(module)[name]
            self._items.append((vars(module), name, value))
            if isinstance(value, types.ModuleType):
                if id(value) not in above:
                    above.add(id(value))
                    self._library(value, names, above)
            elif own:
                self._pending.append((value, f"{module.__name__}.{name}"))

    def _class(self, cls: type, where: str) -> None:
        """Methods and class attributes of the person's own classes; of library modules only which `forward` runs."""
        own = [base for base in cls.__mro__ if _is_own_class(base)]
        names = {name for base in own for name in vars(base)} - _CLASS_NOTES
        if issubclass(cls, torch.nn.Module):
            names.add("forward")
            own = [base for base in cls.__mro__ if base is not object]
        for base in own:
            for name in names:
                value: Any = vars(base).get(name, self)
                self._items.append((vars(base), name, value))  # type: ignore[arg-type]
                if value is not self:
                    self._pending.append((value, f"{cls.__name__}.{name}"))

    def _dict(self, value: dict[Any, Any], where: str) -> None:
        self._dicts.append(value)
        self._places_of[id(value)] = where
        if type(value) is not dict and isinstance(getattr(value, "__dict__", None), dict):
            self._object(value, where)
        for number, (name, item) in enumerate(value.items()):
            if name in _HOOKS and not item:
                self._seen.setdefault(id(item), item)
                continue
            if isinstance(name, torch.Tensor):  # an optimizer keeps its state by parameter
                name = number
            self._pending.append((item, f"{where}.{name}" if where else str(name)))

    def _sequence(self, value: Any, where: str) -> None:
        if isinstance(value, list):
            self._lists.append(value)
            self._places_of[id(value)] = where
        self._pending += [(item, f"{where}[{i}]") for i, item in enumerate(value)]

    def _module(self, module: torch.nn.Module, where: str) -> None:
        attributes = module.__dict__
        # A module that was unpickled or built by hand may lack some of the usual names.
        read = [name for name in attributes if name not in _UNREAD or (name in _HOOKS and attributes[name])]
        self._objects.append(module)
        self._modules.append((attributes, _getter(read)))
        self._places_of[id(attributes)] = where
        self._pending.append((type(module), where))
        for name in read:
            self._pending.append((attributes[name], f"{where}.{name}" if where else name))

    def _object(self, value: Any, where: str) -> None:
        attributes = getattr(value, "__dict__", None)
        slots = [name for base in type(value).__mro__ for name in _slots(base)]
        self._memory(value, where)
        if not isinstance(attributes, dict) and not slots:
            return
        self._objects.append(value)
        self._pending.append((type(value), where))
        for name in slots:
            item = _read(value, name, self)
            self._attributes.append((value, name, item))
            if item is not self:
                self._pending.append((item, f"{where}.{name}"))
        if isinstance(attributes, dict):
            self._attributes_of(attributes, where)

    def _attributes_of(self, attributes: dict[str, Any], where: str) -> None:
        """Attributes of an object. One that is an empty container may become another one (`self.pending = []`)."""
        empty = [name for name, item in attributes.items() if type(item) in _CONTAINERS and not item]
        if not empty:
            self._dict(attributes, where)
            return
        read = [name for name in attributes if name not in empty]
        self._modules.append((attributes, _getter(read)))
        self._places_of[id(attributes)] = where
        for name in empty:
            self._watch(functools.partial(_emptiness, attributes, name))
        for name in read:
            self._pending.append((attributes[name], f"{where}.{name}" if where else name))

    def _memory(self, value: Any, where: str) -> None:
        """What gives other code access to bytes (`ctypes.c_float`, a memoryview, a file mapped into memory)."""
        try:
            with memoryview(value) as view:
                nbytes = view.nbytes
        except TypeError:
            return
        if nbytes > 1 << 16:
            raise TooLarge(where)
        self._watch(functools.partial(_bytes_of, value))


_dtype = attrgetter("dtype")


def _hooks_of(tensor: torch.Tensor) -> list[dict[Any, Any]]:
    """What autograd calls with a tensor's gradient."""
    found = (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None))
    return [hooks for hooks in found if hooks]


def _is_node_hooked(tensor: torch.Tensor) -> bool:
    """Whether there are hooks on the node that accumulates a parameter's gradient, which ends when nobody holds it.

    A hook of our own, taken back at once, lands among the others: torch has no other way to ask.
    """
    if not (tensor.requires_grad and tensor.is_leaf):
        return False
    with torch.inference_mode(False):
        node: Any = torch.autograd.graph.get_gradient_edge(tensor).node
    number = RemovableHandle.next_id
    handles = node.register_prehook(_no_hook), node.register_hook(_no_hook)
    found = [handle.hooks_dict_ref() for handle in handles]
    for handle in handles:
        handle.remove()
    RemovableHandle.next_id = number
    return any(found)


def _no_hook(*gradients: Any) -> None: ...


def _new_hooks(found: Iterable[Any], known: Collection[int]) -> bool:
    return any(hooks and id(hooks) not in known for hooks in found)


def _may_have_gradient(tensor: torch.Tensor) -> bool:
    """A frozen parameter may be thawed under `no_grad`, where no guard looks at `requires_grad`."""
    return tensor.requires_grad or isinstance(tensor, torch.nn.Parameter) or tensor.grad is not None


_needs_grad = attrgetter("requires_grad")


def _has_position(cls: type) -> bool:
    """True for iterators, which a call moves on, and pointers, behind which anything may lie."""
    pointer = issubclass(cls, ctypes._Pointer) or cls in (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_wchar_p)
    return pointer or (hasattr(cls, "__next__") and (not cls.__dictoffset__ or cls.__module__ == "itertools"))


def _contents_of_variable(variable: contextvars.ContextVar[Any]) -> Any:
    """The value of a context variable; of an object, which one it is."""
    value = variable.get(None)
    return (type(value), repr(value)) if isinstance(value, _LEAVES) else (type(value), id(value))


def _read(owner: Any, name: str, absent: Any) -> Any:
    """`getattr`, for closure cells that may be empty as well."""
    try:
        return getattr(owner, name, absent)
    except ValueError:
        return absent


def _slots(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    mangled = [f"_{cls.__name__.lstrip('_')}{n}" if n.startswith("__") and not n.endswith("__") else n for n in names]
    return tuple(name for name in mangled if name not in ("__dict__", "__weakref__"))


def _bytes_of(value: Any) -> bytes:
    with memoryview(value) as view:
        return view.tobytes()


def _emptiness(attributes: dict[str, Any], name: str) -> Any:
    """What is to be known of a container: its type, and that it is empty, or else which one it is."""
    item = attributes.get(name)
    return (type(item), getattr(item, "default_factory", None), None if not item else id(item))


def _contents_of_set(value: Any) -> frozenset[Any]:
    return frozenset([(type(item), item) for item in value])


def _attributes_of(function: types.FunctionType) -> list[str]:
    """The names of what the person hung on a function (``f.calls``)."""
    return [name for name in function.__dict__ if name not in ("__signature__", "__wrapped__")]


def _is_followed(code: types.CodeType) -> bool:
    """True for the person's own code, that of a REPL or of `exec` included."""
    name = code.co_filename
    return is_own_code(name) or (name.startswith("<") and not name.startswith("<frozen"))


def _is_own_module(module: types.ModuleType | None) -> bool:
    if module is None:
        return False
    file = getattr(module, "__file__", None)
    return module.__name__ == "__main__" or (isinstance(file, str) and is_own_code(file))


def _is_own_class(cls: type) -> bool:
    if _is_own_module(sys.modules.get(cls.__module__)):
        return True
    methods = (f for f in vars(cls).values() if isinstance(f, types.FunctionType))
    return any(is_own_code(method.__code__.co_filename) for method in methods)


def _getter(names: list[str]) -> Any:
    """A function of a dict that returns the values of `names` as a tuple."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda attributes: tuple([attributes[name] for name in names])


_mentioned: dict[int, tuple[types.CodeType, frozenset[str], frozenset[str]]] = {}


def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals that a code object mentions, and all names in it, attributes included; nested code too."""
    known = _mentioned.get(id(code))
    if known is None:
        instructions = dis.get_instructions(code)
        names = {i.argval for i in instructions if i.opname in _GLOBAL_INSTRUCTIONS}
        every = set(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                inner = _names(constant)
                names |= inner[0]
                every |= inner[1]
        known = _mentioned[id(code)] = (code, frozenset(names), frozenset(every))
    return known[1:]


def _equal(one: Any, other: Any) -> bool:
    """Equality of plain values of one type; everything else is compared by identity."""
    if type(one) is not type(other) or not isinstance(one, (bool, int, float, complex, str, bytes, tuple)):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(a is b or _equal(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, (float, complex)):
        return repr(one) == repr(other)  # 0.0 is not -0.0
    return bool(one == other)


def _short(value: Any) -> str:
    return repr(value)[:40] if isinstance(value, (bool, int, float, str, type(None))) else "..."
