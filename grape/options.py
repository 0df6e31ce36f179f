"""The one option table that `%%grape`, `grape run` and `grape.session` share."""

from __future__ import annotations

import difflib
import keyword
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from typing import Any

from .errors import UsageError
from .originals import environ

REFERENCE = "GRAPE_REFERENCE"
"""Set to 1, this variable of the environment has graphs serve whatever they can: on a CPU by the reference backend, and
everywhere however long it takes to look at a call. Slower; it shows what graphs do, and the tests run with it."""
ENGINE = "GRAPE_ENGINE"
"""This variable of the environment names the engine of cells that name none."""
ENGINES = ("auto", "regions", "streams")
"""The first is the default."""

Applied = tuple[float, int | None, str]
"""Tolerance, memory budget in bytes, engine."""


def engine_named(name: str | None, *, asked_by: str = "--engine") -> str:
    """The engine of a cell that asks for `name`. Raises `UsageError` for one that does not exist."""
    chosen = name if name is not None else environ.get(ENGINE) or ENGINES[0]
    if chosen not in ENGINES:
        where = asked_by if name is not None else ENGINE
        raise UsageError(f"{where} is one of {', '.join(ENGINES)}, not '{chosen}'")
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of one session. The defaults are right for most cells."""

    engine: str | None = None
    profile: bool = False
    rewrite: bool = False
    tolerance: float = 0.0
    memory_budget: int | None = None
    no_widget: bool = False
    output: str | None = None
    json: str | None = None

    @property
    def applied(self) -> Applied:
        """Those that decide what serves a cell."""
        return self.tolerance, self.memory_budget, engine_named(self.engine)


def with_settings(options: Options, settings: Mapping[str, Any]) -> Options:
    """`options` with fields by their names. Raises `UsageError` for unknown ones and for an unknown engine."""
    known = [field.name for field in fields(Options)]
    for name in settings:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"settings: {', '.join(known)}"
            raise UsageError(f"unknown setting: '{name}'; {hint}")
    chosen = replace(options, **settings)
    engine_named(chosen.engine, asked_by="engine")
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row of the table. `metavar` is None for a switch; `field` names the attribute of `Options`."""

    flags: tuple[str, ...]
    field: str
    metavar: str | None
    help: str


OPTIONS: tuple[Option, ...] = (
    Option(
        flags=("--engine",),
        field="engine",
        metavar="NAME",
        help="regions: graphs of calls and of bodies of loops; streams: operators that repeat; "
        "auto: on a GPU streams first, and regions where those are expected to be faster",
    ),
    Option(flags=("--profile",), field="profile", metavar=None, help="observe and advise; apply nothing"),
    Option(
        flags=("--rewrite",),
        field="rewrite",
        metavar=None,
        help="run the cell with the rewrites that are known: from its source, or compared in an earlier run",
    ),
    Option(
        flags=("--tolerance",),
        field="tolerance",
        metavar="X",
        help="largest absolute difference accepted from operators documented as non-deterministic (default 0: none)",
    ),
    Option(
        flags=("--memory-budget",),
        field="memory_budget",
        metavar="SIZE",
        help="most GPU memory that graphs may hold, for example 2GB or 512MB",
    ),
    Option(flags=("--no-widget",), field="no_widget", metavar=None, help="static summary only"),
    Option(flags=("-o", "--output"), field="output", metavar="NAME", help="bind the report to this name"),
    Option(flags=("--json",), field="json", metavar="FILE", help="write the report as JSON"),
)

_UNITS = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_bytes(text: str) -> int:
    """``"2GB"`` to bytes; units are powers of 1024. Raises `UsageError` where `text` is no size."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match.group(2).upper()) if match else None
    if match is None or unit is None:
        raise UsageError(f"'{text}' is not a size; write for example 512MB or 2GB")
    return int(Decimal(match.group(1)) * unit)


def budget_bytes(budget: object) -> int | None:
    """A memory budget as bytes: a number of them, text such as ``"2GB"``, or None. Raises `UsageError`."""
    if isinstance(budget, str):
        return parse_bytes(budget)
    if budget is None or (type(budget) is int and budget >= 0):
        return budget
    raise UsageError(f"'{budget}' is not a size; give a number of bytes, or text such as 2GB")


def _convert(option: Option, text: str) -> object:
    if option.field == "memory_budget":
        return parse_bytes(text)
    if option.field == "engine":
        return engine_named(text)
    if option.field == "tolerance":
        try:
            value = float(text)
        except ValueError:
            raise UsageError(f"{option.flags[0]} takes a number, not '{text}'") from None
        if not value >= 0 or value == float("inf"):
            raise UsageError(f"{option.flags[0]} takes a finite number of at least 0, not '{text}'")
        return value
    if option.field == "output" and (not text.isidentifier() or keyword.iskeyword(text)):
        raise UsageError(f"-o takes a Python name, not '{text}'")
    return text


def parse_options(line: str | Sequence[str]) -> Options:
    """The options of one line, as `%%grape` or the CLI received it.

    Raises `UsageError` with one line that says what is wrong and, where it can, what was meant.
    """
    try:
        words = shlex.split(line) if isinstance(line, str) else list(line)
    except ValueError as error:
        raise UsageError(f"cannot read the options '{line}': {error}") from None
    known = {flag: option for option in OPTIONS for flag in option.flags}
    values: dict[str, Any] = {}
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        flag, equals, attached = word.partition("=") if word.startswith("--") else (word, "", "")
        option = known.get(flag)
        if option is None:
            alike = [name[2:] for name in known if name.startswith("--")] if flag.startswith("--") else []
            close = difflib.get_close_matches(flag[2:], alike, n=1, cutoff=0.5)
            hint = f"; did you mean --{close[0]}?" if close else f"; options: {', '.join(known)}"
            kind = "option" if word.startswith("-") else "argument"
            raise UsageError(f"unknown {kind} '{word}'{hint}")
        if option.metavar is None:
            if equals:
                raise UsageError(f"{flag} takes no value")
            values[option.field] = True
            continue
        if not equals:
            if position >= len(words):
                raise UsageError(f"{flag} needs a value: {flag} {option.metavar}")
            attached = words[position]
            position += 1
        values[option.field] = _convert(option, attached)
    assert set(values) <= {f.name for f in fields(Options)}
    if values.get("profile") and values.get("rewrite"):
        raise UsageError("--profile applies nothing, so --rewrite cannot go with it; choose one")
    return replace(Options(), **values)
