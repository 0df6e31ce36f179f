"""Which code, modules and classes are the person's own, and what code mentions by name."""

from __future__ import annotations

import dis
import re
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...tracing import is_own_code

_FIELDS, _WORDS = re.compile(r"\{([^{}]*)"), re.compile(r"[^\W\d]\w*")
FORMATS = "{}"
"""Stands among names for a string that shows values."""
_GLOBAL_INSTRUCTIONS = frozenset(
    {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL"}
)


def is_followed(code: types.CodeType) -> bool:
    """True for the person's own code, that of a REPL or of `exec` included."""
    name = code.co_filename
    return is_own_code(name) or (name.startswith("<") and not name.startswith("<frozen"))


def is_own_module(module: types.ModuleType | None) -> bool:
    """True for the notebook and for modules that the person wrote."""
    if module is None:
        return False
    name, file = vars(module).get("__name__"), vars(module).get("__file__")
    return name == "__main__" or (isinstance(file, str) and is_own_code(file))


def is_own_class(cls: type) -> bool:
    """True for a class of the person's, wherever it says that it was made."""
    if is_own_module(sys.modules.get(cls.__module__)):
        return True
    methods = (f for f in vars(cls).values() if isinstance(f, types.FunctionType))
    return any(is_own_code(method.__code__.co_filename) for method in methods)


ANY_NAME = frozenset({"globals", "eval", "exec"})
"""Builtin functions by which code reads names that it does not mention."""


def reads_any_name(code: types.CodeType, namespace: dict[str, object]) -> str | None:
    """Which of `globals`, `eval` and `exec` the code calls, nested code included, if one; `namespace` has its globals.

    Grape's own rewrites call ``_flow.names(globals(), ...)`` with names that the code beside it mentions; that is none.
    """
    owner = attribute = ""
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if not instruction.opname.startswith("LOAD_") or not isinstance(name, str):
            continue
        if name in ANY_NAME and instruction.opname in _GLOBAL_INSTRUCTIONS and name not in namespace:
            module = getattr(namespace.get(owner), "__name__", "")
            if (name, attribute) != ("globals", "names") or not str(module).startswith("grape."):
                return name
        owner, attribute = attribute, name
    nested = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return next((found for one in nested if (found := reads_any_name(one, namespace)) is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mentioned:
    """The names in a code object, nested code included.

    `words` are global names, attributes, imports and the strings that could be names, as in
    ``getattr(config, "scale")``. `chains` says of each global name what is read of it (``torch.cuda.amp``), None where
    it also goes elsewhere as a whole.
    """

    globals: frozenset[str]
    imports: frozenset[str]
    attributes: frozenset[str]
    words: frozenset[str]
    chains: Mapping[str, frozenset[str] | None]

    def of(self, name: str) -> frozenset[str]:
        """Which names may be read of what a global name, or an import, stands for."""
        chain = None if name in self.imports else self.chains.get(name)
        return self.words if chain is None else chain


_mentioned: dict[int, tuple[types.CodeType, Mentioned]] = {}


def mentioned_in(code: types.CodeType) -> Mentioned:
    known = _mentioned.get(id(code))
    if known is None:
        known = _mentioned[id(code)] = (code, _read(code))
    return known[1]


def _read(code: types.CodeType) -> Mentioned:
    global_names: set[str] = set()
    imports: set[str] = set()
    attributes: set[str] = set()
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname.startswith("FORMAT_"):
            attributes.add(FORMATS)
        if not isinstance(name, str):
            continue
        if instruction.opname in _GLOBAL_INSTRUCTIONS:
            global_names.add(name)
        elif instruction.opname == "IMPORT_NAME":
            imports.add(name)
        elif name in code.co_names:
            attributes.add(name)
    words: set[str] = words_in(code.co_consts)
    chains = _chains(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = mentioned_in(constant)
            for name, chain in inner.chains.items():
                known = chains.get(name, frozenset())
                chains[name] = None if known is None or chain is None else known | chain
            global_names |= inner.globals
            imports |= inner.imports
            attributes |= inner.attributes
            words |= inner.words
    return Mentioned(
        globals=frozenset(global_names),
        imports=frozenset(imports),
        attributes=frozenset(attributes),
        words=frozenset(words | global_names | attributes | imports),
        chains=chains,
    )


def _chains(code: types.CodeType) -> dict[str, frozenset[str] | None]:
    found: dict[str, frozenset[str] | None] = {}
    name, chain = "", []
    for instruction in (*dis.get_instructions(code), None):
        if instruction is not None and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and name:
            chain.append(instruction.argval)
            continue
        if name:
            known = found.get(name, frozenset())
            found[name] = None if known is None or not chain else known.union(chain)
        is_global = instruction is not None and instruction.opname in _GLOBAL_INSTRUCTIONS
        name, chain = (instruction.argval, []) if instruction is not None and is_global else ("", [])
    return found


def words_in(constants: Iterable[object]) -> set[str]:
    """What of the strings among them could be names, as in ``getattr(config, "scale")`` and ``"{0.scale}".format``."""
    words: set[str] = set()
    for constant in constants:
        if isinstance(constant, str) and len(constant) < 200:
            words.update(constant.replace(".", " ").split())
            if "%" in constant:
                words.add(FORMATS)
            words.update(word for field in _FIELDS.findall(constant) for word in _WORDS.findall(field))
        elif isinstance(constant, (tuple, frozenset)):
            words |= words_in(constant)
    return words
