"""What code of the person's reaches without naming it: each way there, no longer followed.

python scripts/mutation_table.py reaching
"""

from __future__ import annotations

from .rows import Row, rows_of

__all__ = ["ROWS"]

REACHES = "tests/unit/test_what_code_reaches.py"
GUARDS = "tests/unit/test_runtime_guards.py"
FRAMES = ("tests/integration/test_frames_of_a_cell.py", "-k", "frames or names")

_ROWS = (
    *rows_of(
        "grape.runtime.state.mentions",
        (REACHES,),
        (
            "closures that are not bound",
            '                self.attributes.append((cell, "cell_contents", ABSENT))\n',
            "",
        ),
        ("names that a module does not have", "[(space, name, ABSENT) for name in sorted(missing)]", "[]"),
        ("modules that are handed on", "        self._handed.setdefault(id(module), (module, set()))", "        pass"),
        ("what looks into code", "        if hidden:\n", "        if False:\n"),
        ("getattr by another name", "            self._mentioned.add(name)", "            pass"),
    ),
    *rows_of(
        "grape.runtime.state.mentions",
        (GUARDS, "-k", "does_not_have"),
        ("who makes attributes of a module", "if own and missing:", "if False:"),
    ),
    *rows_of(
        "grape.runtime.state.walk",
        (REACHES,),
        ("names of a methodcaller", "self._mention(words_in(value.__reduce__()[1]))", "pass"),
        ("parts made anew", "self.attributes += [(value, *part) for part in parts]", "pass"),
        ("attributes of a partial", "            if kind is functools.partial:\n", "            if False:\n"),
        ("factories", 'self.attributes.append((value, "default_factory", value.default_factory))', "pass"),
        ("where a class is from", '"__qualname__", "__module__"', '"__qualname__"'),
        ("autocast of other devices", "& TELL_OF_AUTOCAST:", "& frozenset():"),
        ("methods that libraries call", " and names.isdisjoint(self._said_by_libraries)", ""),
    ),
    *rows_of(
        "grape.runtime.state.contents",
        (REACHES,),
        ("items of sets that say they are equal", "else _Same(item)", "else item"),
        ("parts of arrays", " and not issubclass(kind, numpy.void)", ""),
        ("functions made ufuncs", 'if not value.__name__.endswith("(vectorized)") else None', ""),
        ("objects of NumPy", 'return "object" if is_plain(kind) else None', 'return "constant"'),
    ),
    *rows_of(
        "grape.runtime.state.names",
        (REACHES,),
        ("methods that modules call", "called = hasattr(torch.nn.Module, name) or not all", "called = not all"),
        ("methods that show", "names = _SHOWS if name in _SHOWS else", "names ="),
        ("modules that a library's function was made around", " or issubclass(kind, torch.nn.Module)", ""),
    ),
    *rows_of(
        "grape.runtime.state.own_code",
        (REACHES,),
        ("fields of formats", "for field in _FIELDS.findall(constant)", "for field in ()"),
        ("strings that show values", '            if "%" in constant:\n', "            if False:\n"),
        ("formats", 'if instruction.opname.startswith("FORMAT_"):', "if False:"),
    ),
    *rows_of(
        "grape.runtime.state.libraries",
        (REACHES,),
        (
            "decimal depends on nothing",
            '"copy", "dataclasses", "enum"',
            '"copy", "dataclasses", "decimal", "_decimal", "enum"',
        ),
    ),
    *rows_of(
        "grape.runtime.dispatch.frames",
        FRAMES,
        ("methods by their names", "for function in methods.get(name, ())", "for function in ()"),
        ("class methods by their names", 'function = getattr(method, "__func__", method)', "function = method"),
    ),
    *rows_of(
        "grape.runtime.guarding.guards",
        ("tests/integration/test_replaced_functions.py", "-k", "in_the_place_of_another"),
        ("code that ran and no guard follows", "if code_behind(code) not in known", "if False"),
    ),
    *rows_of(
        "grape.runtime.state.namespaces",
        ("tests/integration/test_replaced_functions.py", "-k", "hung"),
        ("properties hung on tensors", "    if kind is property:\n", "    if False:\n"),
        (
            "methods hung on tensors",
            "    if kind in (functools.partial, functools.partialmethod):\n",
            "    if False:\n",
        ),
    ),
)
ROWS = tuple(Row(f"reaching: {row.what}", row.apply, row.tests) for row in _ROWS)
