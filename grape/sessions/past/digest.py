"""A name for a cell that is the same in another process."""

from __future__ import annotations

import hashlib
from types import CodeType


def digest_of(key: tuple[str, frozenset[object]]) -> str:
    """The same in another process for the same source over the same code."""
    source, facts = key
    lines = sorted(_fact(fact) for fact in facts)
    return hashlib.sha256("\0".join([source, *lines]).encode("utf-8", "surrogatepass")).hexdigest()


def _fact(value: object) -> str:
    if isinstance(value, CodeType):
        return f"code({_code(value)})"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_fact, value))})"
    if isinstance(value, (frozenset, set)):
        return f"{{{', '.join(sorted(map(_fact, value)))}}}"
    return f"{type(value).__name__} {value!r}"


def _code(code: CodeType) -> str:
    """Code compares so, too: by all but its file."""
    parts = (
        *(code.co_name, code.co_qualname, code.co_firstlineno, code.co_flags, code.co_code.hex(), code.co_names),
        *(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_varnames, code.co_freevars),
        *(code.co_cellvars, code.co_linetable.hex(), code.co_exceptiontable.hex(), code.co_consts),
    )
    return ", ".join(map(_fact, parts))
