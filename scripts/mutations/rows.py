"""What a row is, and how a piece of a module's source is replaced."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

__all__ = ["ROOT", "Row", "compiled", "edited", "of_streams", "rows_of", "stale"]

ROOT = Path(__file__).resolve().parent.parent.parent


class Row(NamedTuple):
    """`apply` breaks something in the process of the tests; `tests` are pytest's arguments."""

    what: str
    apply: Callable[[], None]
    tests: tuple[str, ...]


class _Edited(SourceFileLoader):
    """Loads a module from its source with one piece of text replaced, past the cache of compiled files."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec")


class _Editor(MetaPathFinder):
    def __init__(self, module: str, path: Path, source: str) -> None:
        self._module, self._path, self._source = module, str(path), source

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None:
            spec.loader = _Edited(fullname, self._path, self._source)
        return spec


def edited(module: str, old: str, new: str) -> Callable[[], None]:
    """Replaces a piece of the module's text, which must stand there exactly once."""
    path = ROOT / (module.replace(".", "/") + ".py")

    def apply() -> None:
        source = path.read_text()
        if source.count(old) != 1:
            raise ValueError(f"{module} has {source.count(old)} times {old!r}")
        assert module not in sys.modules
        sys.meta_path.insert(0, _Editor(module, path, source.replace(old, new)))

    _pieces[apply] = ((path, old),)
    return apply


_pieces: dict[Callable[[], None], tuple[tuple[Path, str], ...]] = {}
"""What has to stand where, by what replaces it."""


def stale(row: Row) -> list[str]:
    """The pieces of text that a row replaces, and that do not stand there exactly once."""
    return [f"{path.name}: {old!r}" for path, old in _pieces.get(row.apply, ()) if path.read_text().count(old) != 1]


def compiled(*edits: tuple[str, str, str]) -> Callable[[], None]:
    """Replaces pieces of files of the extension, which must stand there exactly once, and builds that quickly; an edit
    is a file, the old text and the new one. What is built stays, for the next time, in a folder of temporary files.
    """

    def apply() -> None:
        from grape import native
        from grape.native import build

        made = Path(tempfile.mkdtemp(prefix="grape-mutant-"))
        shutil.copytree(build.SOURCES, made, dirs_exist_ok=True)
        for file, old, new in edits:
            [path] = made.rglob(file)
            source = path.read_text()
            if source.count(old) != 1:
                raise ValueError(f"{file} has {source.count(old)} times {old!r}")
            path.write_text(source.replace(old, new))
        flags = ["-O0" if flag == "-O2" else flag for flag in build._flags()]
        os.environ["TORCH_EXTENSIONS_DIR"] = str(Path(tempfile.gettempdir(), "grape-mutants"))
        build.SOURCES, build._flags = made, lambda: flags
        built = native.load()
        shutil.rmtree(made)
        if isinstance(built, native.Unavailable):
            raise ValueError(built.reason)

    sources = ROOT / "grape" / "native" / "src"
    _pieces[apply] = tuple((path, old) for file, old, _ in edits for path in sources.rglob(file))
    return apply


def rows_of(module: str, tests: tuple[str, ...], *edits: tuple[str, str, str]) -> tuple[Row, ...]:
    """Rows for one module and the same tests; an edit is what the row is called, the old text, the new one."""
    return tuple(Row(what, edited(module, old, new), tests) for what, old, new in edits)


def of_streams(what: str, tests: tuple[str, ...], file: str, *edits: tuple[str, str]) -> Row:
    """A row for one file of the extension; an edit is the old text and the new one."""
    return Row(f"streams: {what}", compiled(*((file, old, new) for old, new in edits)), tests)
