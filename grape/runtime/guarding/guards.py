"""True where what a region reads besides its arguments is still as it was.

What that is, `state` finds. Tensors found on the way are the *sources* of storages that a trace reads from outside; a
storage without a source cannot be guarded, and the region is refused.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import operator
import sys
import types
import weakref
from collections.abc import Collection, Iterable, Mapping
from itertools import compress, repeat

import torch
from torch.utils.hooks import RemovableHandle

from ...failures import is_signalled
from ...model import Reason, Refused
from ...tracing import is_own_code
from ..dispatch.trampoline import code_behind, written_code
from ..replaying.node_numbers import unnumbered
from ..state import (
    ABSENT,
    HOOKS,
    LEAVES,
    Contents,
    KeptState,
    Namespaces,
    Reach,
    TooLarge,
    are_of,
    attribute_names,
    attributes_of,
    have,
    held_by,
    hooks_of,
    is_defined_again,
    is_equal,
    is_node_hooked,
    new_hooks,
    read,
)
from .tensor_guards import Places


class GuardSet:
    """A snapshot of the state that `root` and the objects in `more` can read; `holds` says whether it is unchanged.

    `sources` maps a storage's identity to the tensor that it was found through.
    """

    def __init__(self, root: object, more: tuple[object, ...] = ()) -> None:
        found = Reach((root, *more))
        self.sources = found.sources
        self.culprits: list[str] = []
        """By which names the code reaches what `difference` last found to be changed."""
        self.only_tensors = False
        """True where that was nothing but tensors in the place of tensors."""
        self.name = ""
        """That of the attribute or the global that `difference` last found to be changed."""
        self._dicts, self._lists, self._modules = found.dicts, found.lists, found.modules
        self._items, self._attributes = [*found.items, *found.settings], found.attributes
        self._found_by_name = len(found.items)
        self._codes, self._states, self._objects = found.codes, found.states, tuple(found.objects)
        self.tensors, self._names = found.tensors, found.names
        self._places_of, self._seen = found.places_of, found.seen
        self._replaceable, self._functions = found.replaceable(), set(found.met)
        self.more = more
        self._let_go(root)
        try:
            self._containers = Contents(self._dicts, self._lists, self._modules)
            self._snapshot()
        except Exception as error:  # a nested tensor has no size
            if is_signalled(error):
                raise
            raise TooLarge("the code") from error

    def _let_go(self, root: object) -> None:
        """A module is the person's: guarding it must not keep it alive. Its graphs die with it."""
        self._root: weakref.ref[torch.nn.Module] | None = None
        if isinstance(root, torch.nn.Module):
            self._root = weakref.ref(root)
            self._root_class, self._root_attributes = type(root), vars(root)
            self._objects = tuple([value for value in self._objects if value is not root])
            self._seen[id(root)] = None

    def refuse_strays(self, ran: Iterable[types.CodeType]) -> Refused | None:
        """Why a call in which such code of the person's ran is none to replay: what code reads that no guard follows,
        nobody compares."""
        known, pending = set[types.CodeType | None]({None}), [code for _, code in self._codes]
        while pending:
            known.add(code_behind(code := pending.pop()))
            pending += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
        stray = min((code.co_qualname for code in ran if code_behind(code) not in known), default=None)
        return Refused.because(Reason.OPAQUE, what=f"`{stray}` is called, to which no name leads") if stray else None

    def watches_others(self, found: Reach) -> bool:
        """True where the region runs functions that are not among those found, as the person defined them again."""
        functions, codes = {id(function) for function, _ in found.codes}, {code for _, code in found.codes}
        return any(id(function) not in functions and code not in codes for function, code in self._codes)

    def replaced(self) -> list[object]:
        """Modules and other objects in whose place, by the names that the region uses, something else stands now."""
        pairs = [(names.get(name, ABSENT), value) for names, name, value in self._items]
        pairs += [(read(owner, name, ABSENT), value) for owner, name, value in self._attributes]
        with contextlib.suppress(KeyError):  # an attribute of a module is gone
            pairs += zip(self._containers.values(), self._containers.saved, strict=False)
        gone = [then for now, then in pairs if now is not then and not is_equal(now, then)]
        return list({id(then): then for then in gone if not isinstance(then, (*LEAVES, torch.Tensor))}.values())

    def references(self, value: object) -> int:
        """How many references to an object these guards hold."""
        attributes = [thing for owner, _, then in self._attributes for thing in (owner, then)]
        states = [one for state, _ in self._states if isinstance(state, functools.partial) for one in state.args]
        held: list[object] = [then for _, _, then in self._items]
        held += [*self._containers.held(), *attributes, *states, *self._objects, *self._lists, *self.more]
        held += [*(function for function, _ in self._codes), *self._namespaces.held(), *held_by(self._have)]
        return sum(one is value for one in held) + (self._seen.get(id(value)) is value)

    def reaches(self, value: object) -> bool:
        """True where this very object was found, so that what it holds is guarded.

        Who asks is going to give it back: from now on no other will do in its place.
        """
        self._replaceable.discard(id(value))
        return self._seen.get(id(value)) is value

    def has_hooked_nodes(self) -> bool:
        """True if somebody holds the node of a gradient and has a hook on it, which ends with the node, unguarded."""
        with unnumbered():  # to ask for the node of a gradient takes a number in some versions of torch
            return any(map(is_node_hooked, self.tensors))

    def leaves(self) -> list[tuple[str, torch.Tensor]]:
        """Name and tensor of all that were found and may have a gradient."""
        named = zip(self._names, self.tensors, strict=True)
        return [(name, tensor) for name, tensor in named if tensor.is_leaf and _may_have_gradient(tensor)]

    def form(self) -> tuple[object, ...]:
        """Name, shape, stride and dtype of every tensor that was found, and whether it needs a gradient."""
        return tuple(self._names), *self._places.form

    def places_of(self, wanted: Collection[int]) -> list[tuple[object, object]]:
        """The dicts and lists that hold the tensors with these identities, each with the key or index."""
        dicts = {id(one): one for one in (*self._dicts, *(attributes for attributes, _ in self._modules))}.values()
        places: list[tuple[object, object]] = [
            (one, key) for one in dicts for key, value in one.items() if id(value) in wanted
        ]
        return [*places, *((one, i) for one in self._lists for i, value in enumerate(one) if id(value) in wanted)]

    @property
    def attributes(self) -> list[dict[str, object]]:
        """The dicts of attributes of the modules and other objects that were found."""
        return [attributes for attributes, _ in self._modules]

    @property
    def root(self) -> torch.nn.Module | None:
        """The module where the guards start; None for a function, or where the module is gone."""
        return self._root() if self._root is not None else None

    @property
    def modules(self) -> list[torch.nn.Module]:
        """All modules that were found, but for the root."""
        return [value for value in self._objects if isinstance(value, torch.nn.Module)]

    def kept(self) -> KeptState:
        """All that can be put back if it is changed from now on."""
        dicts = [*self._dicts, *self.attributes]
        items = [item for item in self._items[: self._found_by_name] if not _is_librarys(item[0])]
        return KeptState(dicts, self._lists, items, self._attributes, self.tensors)

    def _snapshot(self) -> None:
        self._namespaces = Namespaces(self._items, ABSENT)
        self._containers.remember()
        self._places = Places(self.tensors)
        self._handles = RemovableHandle.next_id
        self._classes, dicts = tuple(map(type, self._objects)), tuple(map(attributes_of, self._objects))
        self._has_dict, self._dicts_of = [one is not None for one in dicts], [one for one in dicts if one is not None]
        self._are_of = are_of(self._objects, self._classes, dicts)
        self._have = have(
            [*self._attributes, *((function, "__code__", function.__code__) for function, _ in self._codes)]
        )

    def holds(self, *, in_memory: bool = False) -> bool:
        """True where nothing that was found has changed since. `in_memory`: that was just asked, and is so."""
        try:
            if RemovableHandle.next_id != self._handles:
                return self.difference() is None
            return self._unchanged(in_memory) or self._same_values()
        except Exception as error:  # a module's attribute is gone, or what came in its place cannot be compared
            if is_signalled(error):
                raise
            return False

    def _unchanged(self, in_memory: bool) -> bool:
        return (
            self._same_root()
            and self._containers.same()
            and self._namespaces.same()
            and (self._have() or self._same_attributes())
            and all([state() == then for state, then in self._states])
            and (self._are_of() or self._same_classes())
            and self._places.same(in_memory=in_memory)
        )

    def _same_attributes(self) -> bool:
        return all(read(owner, name, ABSENT) is value for owner, name, value in self._attributes) and all(
            written_code(function) is code for function, code in self._codes
        )

    def _same_root(self) -> bool:
        if self._root is None:
            return True
        root = self._root()
        return type(root) is self._root_class and vars(root) is self._root_attributes

    def _same_classes(self) -> bool:
        """Of the objects, and that their attributes are in the dicts where they were."""
        if [*map(type, self._objects)] != [*self._classes]:
            return False
        owners = compress(self._objects, self._has_dict)
        # As `attributes_of`, but for calls of Python.
        return all(map(operator.is_, map(object.__getattribute__, owners, repeat("__dict__")), self._dicts_of))

    def begin_run(self) -> None:
        """Look at the modules' dicts of hooks themselves once: another cell may have put one there by hand."""
        self._handles = -1

    def in_memory(self) -> bool:
        """True where every tensor lies where it did: what a graph reads must exist before it is launched."""
        return self._places.lie_there()

    def _same_values(self) -> bool:
        """Equal values under other identities (``self.eps = 1e-5`` again) hold as well; remember the new ones."""
        if self.difference() is not None:
            return False
        for names, name, value in self._items:
            now = names.get(name, ABSENT)
            if now is not value and isinstance(value, types.FunctionType) and isinstance(now, types.FunctionType):
                self._renew(value, now)
        self._snapshot()
        return True

    def _renew(self, function: types.FunctionType, again: types.FunctionType) -> None:
        """From now on watch `again`, in the place of a function that does the same."""

        def renewed(value: object) -> object:
            return again if value is function else value

        self._items = [(names, name, renewed(value)) for names, name, value in self._items]
        self._attributes = [(renewed(owner), name, value) for owner, name, value in self._attributes]
        self._codes = [(again, written_code(again)) if one is function else (one, code) for one, code in self._codes]
        watched = functools.partial(attribute_names, function)
        self._states = [
            (functools.partial(attribute_names, again), then)
            if isinstance(state, functools.partial) and (state.func, state.args) == (watched.func, watched.args)
            else (state, then)
            for state, then in self._states
        ]
        for functions in (self._replaceable, self._functions):
            functions.symmetric_difference_update((id(function), id(again)))
        del self._seen[id(function)]
        self._seen[id(again)] = again

    def _is_defined_again(self, now: object, then: object) -> bool:
        fresh = id(then) in self._replaceable and id(now) not in self._functions
        return fresh and is_defined_again(now, then, self._codes)

    def difference(self) -> str | None:
        """Says what has changed; None where nothing has."""
        self.culprits, self.only_tensors, self.name = [], False, ""
        try:
            return self._difference()
        except KeyError as missing:
            self.name = str(missing.args[0]) if missing.args else ""
            return f"the attribute {missing} of a module"
        except Exception as error:
            if is_signalled(error):
                raise
            return f"a value that cannot be compared ({type(error).__name__})"

    def _blame(self, holder: object) -> None:
        where = self._places_of.get(id(holder))
        if where and where not in self.culprits:
            self.culprits.append(where)

    def _difference(self) -> str | None:
        if RemovableHandle.next_id != self._handles:
            known = {id(hooks) for hooks in self._dicts}  # a change of these is found below
            for owner in (*self._seen.values(), self._root and self._root()):
                if isinstance(owner, torch.nn.Module) and new_hooks(map(vars(owner).get, HOOKS), known):
                    return f"a hook on {type(owner).__name__}"
            if any(new_hooks(hooks_of(tensor), known) for tensor in self.tensors):
                return "a hook on a tensor"
            if self.has_hooked_nodes():
                return "a hook on a gradient's node"
            self._handles = RemovableHandle.next_id
        if not self._same_root() or not self._same_classes():
            return "the class or the `__dict__` of an object that the region reads"
        grown = self._containers.other_sizes()
        if grown:
            self._blame(grown[0])
            return "the number of attributes or items of an object that the region reads"
        what, tensors = None, True
        for number, (now, then) in enumerate(zip(self._containers.values(), self._containers.saved, strict=True)):
            if now is not then and not is_equal(now, then):
                self._blame(self._containers.holder_of(number))
                changed = f"({type(then).__name__} {_short(then)} -> {_short(now)})"
                what = what or f"a value that the region reads {changed}"
                tensors &= isinstance(now, torch.Tensor) and isinstance(then, torch.Tensor)
        if what is not None:
            self.only_tensors = tensors
            return what
        for names, name, value in self._items:
            now = names.get(name, ABSENT)
            if now is not value and not is_equal(now, value) and not self._is_defined_again(now, value):
                self.culprits, self.name = [name], name
                return f"the global '{name}'"
        for owner, name, value in self._attributes:
            if read(owner, name, ABSENT) is not value and not is_equal(read(owner, name, ABSENT), value):
                self.name = name
                return f"'{name}' of {getattr(owner, '__qualname__', type(owner).__name__)}"
        for function, code in self._codes:
            if written_code(function) is not code:
                return f"the code of {function.__qualname__}"
        for state, then in self._states:
            if state() != then:
                return "a set, an array or a function's attributes that the region reads"
        if not self._places.same_in_python():
            return "the memory of a parameter, buffer or other tensor that the region reads"
        return None


def _is_librarys(names: Mapping[str, object]) -> bool:
    """True where a namespace is that of a library, which may set itself up when it is first called."""
    file = names.get("__file__")
    return names is sys.modules or names is vars(builtins) or (isinstance(file, str) and not is_own_code(file))


def _may_have_gradient(tensor: torch.Tensor) -> bool:
    """A frozen parameter may be thawed by the code itself."""
    return tensor.requires_grad or isinstance(tensor, torch.nn.Parameter) or tensor.grad is not None


def _short(value: object) -> str:
    return repr(value)[:40] if isinstance(value, (bool, int, float, str, type(None))) else "..."
