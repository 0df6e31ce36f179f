"""The rooms of the house: no import goes in a circle, no file is long, also of C++, no package is crowded.

Imports of every kind count: those at the top, inside of functions, and for type checkers only.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

GRAPE = Path(__file__).parents[2] / "grape"
MOST_LINES = 350
MOST_FILES = 15


def modules(root: Path) -> dict[str, Path]:
    found = {}
    for path in root.rglob("*.py"):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: Iterable[str]) -> Iterator[str]:
    """The modules of `known` that the module `name` imports, anywhere in it."""
    known = set(known)
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield from (one for one in [inner if inner in known else base] if one in known)


def circles(imports: Mapping[str, Iterable[str]]) -> list[frozenset[str]]:
    """Modules that lead to each other (Tarjan's strongly connected components, those of more than one)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_ones: list[str] = []
    found: list[frozenset[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        open_ones.append(name)
        for other in imports.get(name, ()):
            if other not in order:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in open_ones:
                lowest[name] = min(lowest[name], order[other])
        if lowest[name] == order[name]:
            at = open_ones.index(name)
            circle = frozenset(open_ones[at:])
            del open_ones[at:]
            if len(circle) > 1:
                found.append(circle)

    for name in imports:
        if name not in order:
            visit(name)
    return found


def imports_of(root: Path) -> dict[str, set[str]]:
    known = modules(root)
    found = {name: {one for one in imported(name, path, known) if one != name} for name, path in known.items()}
    found.pop(root.name)  # names the public API and imports it only when it is asked for
    return found


def test_no_import_goes_in_a_circle() -> None:
    assert [sorted(circle) for circle in circles(imports_of(GRAPE))] == []


@pytest.mark.parametrize(
    "back",
    [
        "from .one import name\n",
        "from . import one\n",
        "import house.one\n",
        "def later():\n    from .one import name\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .one import name\n",
    ],
)
def test_a_circle_of_any_kind_is_found(tmp_path: Path, back: str) -> None:
    house = tmp_path / "house"
    (house / "room").mkdir(parents=True)
    (house / "__init__.py").write_text("")
    (house / "one.py").write_text("from .room.deep import name\n")
    (house / "room" / "deep.py").write_text("from ..two import name\n")
    (house / "two.py").write_text(back)
    assert circles(imports_of(house)) == [frozenset({"house.one", "house.two", "house.room.deep"})]
    (house / "two.py").write_text("name = 1\n")
    assert circles(imports_of(house)) == []


def test_no_file_is_longer_than_it_can_be_read_at_once() -> None:
    files = [path for kind in ("*.py", "*.h", "*.cpp") for path in GRAPE.rglob(kind)]
    assert {path.suffix for path in files} == {".py", ".h", ".cpp"}
    lengths = {str(path.relative_to(GRAPE)): len(path.read_text().splitlines()) for path in files}
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


def test_no_package_has_more_loose_files_than_can_be_overlooked() -> None:
    files = [path for kind in ("*.py", "*.h", "*.cpp") for path in GRAPE.rglob(kind)]
    loose = Counter(str(path.parent.relative_to(GRAPE)) for path in files)
    assert {package: files for package, files in loose.items() if files > MOST_FILES} == {}
