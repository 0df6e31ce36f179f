"""A cell's source as a person typed it: IPython's lines masked and restored, differences, digests.

LibCST reads Python only. Each line that is IPython's becomes one line of Python, so that line numbers stay; after
the rewrite each comes back exactly as it was typed. The stand-ins call an unknown function, so that a rewrite that
asks what a loop does finds something it cannot know.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import io
import re
import symtable
import tokenize
from dataclasses import dataclass
from functools import lru_cache

from ..quiet import syntax_tree, without_warnings
from .outlining import names_of
from .result import Declined

_ESCAPED = re.compile(r"\s*(?:[%!?]|\S.*\?\s*$|/[A-Za-z_]|,[A-Za-z_]|;[A-Za-z_])")
_ASSIGNED = re.compile(r"(?P<indent>\s*)(?P<targets>[^=!%?#'\"]+?)\s*=\s*[%!](?!=)")
_CELL_MAGIC = re.compile(r"\s*%%(?P<name>\S*)")
_PYTHON_MAGICS = frozenset({"grape", "time", "timeit", "capture", "prun", "memit"})
_COMMENT = "#_grape_masked_{}_"
_CALL = "_grape_masked_{}_()"
_MASKED = re.compile(r"^(?P<indent>\s*)(?:#_grape_masked_(?P<comment>\d+)_|.*\b_grape_masked_(?P<call>\d+)_\(\))\s*$")
_ANY = re.compile(r"_grape_masked_\d+_")
_GRAPE = re.compile(r"\s*%%grape(?:\s.*)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked:
    """`text` is Python, with as many lines as the source; `lines` are those that it hides, in their order."""

    text: str
    lines: tuple[str, ...]

    def restore(self, text: str) -> str | None:
        """`text`, a rewritten `self.text`, with the hidden lines back; None where one is missing or was changed."""
        seen = []
        restored = []
        for line in text.split("\n"):
            match = _MASKED.match(line)
            if match is None:
                if _ANY.search(line):
                    return None
                restored.append(line)
                continue
            number = int(match["comment"] or match["call"])
            if number >= len(self.lines):
                return None
            seen.append(number)
            hidden = self.lines[number]
            same = hidden[: len(hidden) - len(hidden.lstrip())] == match["indent"]
            restored.append(hidden if same else match["indent"] + hidden.lstrip())
        return "\n".join(restored) if seen == list(range(len(self.lines))) else None


@lru_cache(maxsize=128)
def mask(source: str) -> Masked | Declined:
    """`source` as Python. Refused for cells of other languages and for what is no Python even so."""
    if _ANY.search(source):
        return Declined(why="the source uses names that Grape needs for itself")
    hidden: list[str] = []
    lines = source.split("\n")
    refused = _mask_cell_magics(lines, hidden)
    if refused is not None:
        return refused
    index = 0
    while index < len(lines):
        line = lines[index]
        stand_in = _stand_in(line, len(hidden))
        # A comment that ends with a question mark, a string: what Python takes as it is stays as it is.
        if stand_in is None or syntax_tree(line.strip()) is not None or not _begins_statement(lines[:index]):
            index += 1
            continue
        if line.rstrip().endswith("\\"):
            return Declined(why="a magic or shell line goes on over several lines", line=index + 1)
        hidden.append(line)
        lines[index] = stand_in
        index += 1
    text = "\n".join(lines)
    problem = is_python(text)
    if problem is not None:
        return problem
    return Masked(text=text, lines=tuple(hidden))


def _mask_cell_magics(lines: list[str], hidden: list[str]) -> Declined | None:
    """Cell magics at the top whose body is Python become comments."""
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        match = _CELL_MAGIC.match(line)
        if match is None:
            return None
        if match["name"] not in _PYTHON_MAGICS:
            return Declined(why=f"the cell belongs to %%{match['name']}", line=index + 1)
        indent = line[: len(line) - len(line.lstrip())]
        lines[index] = indent + _COMMENT.format(len(hidden))
        hidden.append(line)
    return None


def _stand_in(line: str, number: int) -> str | None:
    """The Python that stands for an IPython line; None for a line that cannot be one."""
    assigned = _ASSIGNED.match(line)
    if assigned is not None:
        return f"{assigned['indent']}{assigned['targets']} = {_CALL.format(number)}"
    if _ESCAPED.match(line) is None:
        return None
    return line[: len(line) - len(line.lstrip())] + _CALL.format(number)


def _begins_statement(above: list[str]) -> bool:
    """False inside a string or a bracket that is still open, and below a backslash."""
    if above and above[-1].rstrip("\r").endswith("\\"):
        return False
    try:
        list(tokenize.generate_tokens(io.StringIO("\n".join(above) + "\n").readline))
    except tokenize.TokenError:
        return False
    except (SyntaxError, IndentationError):
        return True
    return True


def is_python(text: str) -> Declined | None:
    """None where `text` compiles as a cell (await at the top allowed), else why not."""
    try:
        with without_warnings():
            compile(text, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as error:
        return Declined(why=f"the cell is no Python: {error.msg}", line=error.lineno)
    except (ValueError, RecursionError, MemoryError) as error:
        return Declined(why=f"the cell is no Python: {error}")
    return None


@lru_cache(maxsize=128)
def names_in_functions(source: str) -> frozenset[str]:
    """The global names that functions in `source` use; empty where it is no Python."""
    masked = mask(source)
    if isinstance(masked, Declined):
        return frozenset()
    names: set[str] = set()
    tables = symtable.symtable(masked.text, "<cell>", "exec").get_children()
    while tables:
        table = tables.pop()
        names.update(symbol.get_name() for symbol in table.get_symbols() if symbol.is_global())
        tables += table.get_children()
    return frozenset(names)


def names_bound(text: str, *, imports: bool) -> frozenset[str]:
    """The names that Python code binds at its top, with those that it imports or not. Raises SyntaxError."""
    # Not the symbol table's: since CPython 3.12 it has what comprehensions call their items.
    bound = frozenset(names_of(ast.parse(text).body).stores)
    symbols = symtable.symtable(text, "<cell>", "exec").get_symbols()
    return bound if imports else bound.difference(one.get_name() for one in symbols if one.is_imported())


def split_magic(source: str) -> tuple[str, str]:
    """The ``%%grape`` line with what stands above it, line end included, and the rest. The first is "" without one."""
    lines = source.splitlines(keepends=True)
    for index, line in enumerate(lines):
        if line.strip():
            if _GRAPE.match(line.rstrip()):
                return "".join(lines[: index + 1]), "".join(lines[index + 1 :])
            break
    return "", source


def digest(source: str) -> str:
    """Names the source below its ``%%grape`` line, so that an edited cell is noticed. Line ends at its end are free."""
    magic, body = split_magic(source)
    below = " below %%grape" if magic else ""
    return f"sha256:{hashlib.sha256(body.rstrip().encode()).hexdigest()[:16]}{below}"


def unified_diff(old: str, new: str, name: str) -> str:
    """A unified diff with three lines of context, as `patch` and nbdime read it; "" where nothing changed.

    The digest of `old` stands where a diff has the date of the file.
    """
    if name.startswith("In[") and not old.endswith("\n") and not new.endswith("\n"):
        # A notebook keeps cells without a last line end; to say so would hide what changes.
        old, new = f"{old}\n", f"{new}\n"
    before, after = (text.splitlines(keepends=True) for text in (old, new))
    lines = difflib.unified_diff(before, after, name, name, digest(old), "rewritten")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
