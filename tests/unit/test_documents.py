"""What the documents name exists: files, names in them, tests, links with their anchors."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for folder in ("grape", "tests", "benchmarks", "scripts")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".h", ".cpp") and "data" not in path.parts
]
INSIDE = [
    ROOT / "ARCHITECTURE.md",
    ROOT / "docs" / "invariants.md",
    ROOT / "docs" / "limits.md",
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
    *sorted((ROOT / "grape").rglob("*.md")),
]
"""About the code: every name in them is one of it, or one of the libraries'."""
PAGES = sorted({ROOT / "README.md", ROOT / "CHANGELOG.md", *INSIDE, *(ROOT / "docs").glob("*.md")})
OTHERS = {"Logger.callHandlers", "Stream.query", "cell.decisions", "function.__code__"}
"""Names of libraries, and of the report's fields, that look like names of Grape's."""
TO_BE_WRITTEN = {"rules/grnnn.py", "tests/unit/test_rules_grnnn.py"}

FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./-]+\.(?:py|h|cpp)")
IN_FILE = re.compile(rf"({FILE.pattern}): (\w+(?:\.\w+)?)")
MEMBER = re.compile(r"([A-Za-z_]\w*)\.([A-Za-z_]\w*)")
TEST = re.compile(r"test_\w+")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def missing(text: str, page: Path) -> Iterator[str]:
    """What `text`, of `page`, names and nobody has."""
    prose = FENCE.sub("", text)
    for target, anchor in LINK.findall(prose):
        file = (page.parent / target) if target else page
        if not file.exists():
            yield f"link {target}"
        elif anchor and anchor not in anchors(file):
            yield f"link {target}#{anchor}"
    if page not in INSIDE:
        return
    for span in SPAN.findall(prose):
        if FILE.fullmatch(span):
            if span not in TO_BE_WRITTEN and not files(span):
                yield span
        elif found := IN_FILE.fullmatch(span):
            file_name, name = found.groups()
            if not any(name in names(path) for path in files(file_name)):
                yield span
        elif TEST.fullmatch(span) and span not in known_tests():
            yield span
        elif (found := MEMBER.fullmatch(span)) and span not in OTHERS:
            owner, name = found.groups()
            modules = [path for path in SOURCES if path.stem == owner and path.is_relative_to(ROOT / "grape")]
            known = [names(path) for path in modules]
            members = classes().get(owner)
            if (known and not any(name in one for one in known)) or (members is not None and name not in members):
                yield span


@functools.cache
def files(name: str) -> tuple[Path, ...]:
    """The files whose path ends so."""
    return tuple(path for path in SOURCES if f"/{path.relative_to(ROOT)}".endswith(f"/{name}"))


@functools.cache
def names(path: Path) -> frozenset[str]:
    """What a file defines: its own names, and members of its classes as ``Class.member``."""
    if path.suffix != ".py":
        return frozenset(re.findall(r"\b[A-Za-z_]\w*\b", path.read_text()))
    tree = ast.parse(path.read_text())
    found = set(bound(tree.body))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{member}" for member in members_of(node)}
    return frozenset(found)


def bound(body: list[ast.stmt]) -> Iterator[str]:
    """The names that statements assign, but for those of functions and classes."""
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            each = target.elts if isinstance(target, ast.Tuple) else [target]
            yield from (one.id for one in each if isinstance(one, ast.Name))


def members_of(node: ast.ClassDef) -> Iterator[str]:
    yield from bound(node.body)
    for inner in ast.walk(node):
        if isinstance(inner, (ast.FunctionDef, ast.ClassDef)):
            yield inner.name
        elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "self":
            yield inner.attr


@functools.cache
def classes() -> dict[str, set[str]]:
    """The members of Grape's classes by name, those of its own base classes included."""
    found: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for path in (ROOT / "grape").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(members_of(node))
                bases.setdefault(node.name, set()).update(b.id for b in node.bases if isinstance(b, ast.Name))
    for _ in range(3):
        for name, of in bases.items():
            for base in of:
                found[name] |= found.get(base, set())
    return found


@functools.cache
def known_tests() -> frozenset[str]:
    here = [path for path in SOURCES if path.is_relative_to(ROOT / "tests")]
    return frozenset(path.stem for path in here).union(*(names(path) for path in here if path.suffix == ".py"))


@functools.cache
def anchors(page: Path) -> frozenset[str]:
    """Of headings, as a front end makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_document_names_exists(page: Path) -> None:
    assert list(missing(page.read_text(), page)) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`runtime/regions/region.py`, `region.py`, `engine.h` and `runtime/regions/region.py: Region.call`", []),
        ("`runtime/regoin.py`", ["runtime/regoin.py"]),
        ("`runtime/regions/region.py: Region.cal`", ["runtime/regions/region.py: Region.cal"]),
        ("`runtime/accounts/policy.py: FEW`, `policy.decide`", []),
        ("`policy.decided`", ["policy.decided"]),
        ("`engine.h: Engine`", []),
        ("`engine.h: Motor`", ["engine.h: Motor"]),
        ("`Entry.serve`, `torch.cat`, `PairEntry.serve`", []),
        ("`Entry.served`", ["Entry.served"]),
        ("`test_what_a_document_names_exists`, `test_documents`", []),
        ("`test_that_nobody_wrote`", ["test_that_nobody_wrote"]),
        ("[a](docs/memory.md#a-budget)", []),
        ("[a](docs/memory.md#no-budget)", ["link docs/memory.md#no-budget"]),
        ("[a](docs/memories.md)", ["link docs/memories.md"]),
        ("```\n`runtime/regoin.py`\n```", []),
    ],
)
def test_a_name_that_nobody_has_is_found(text: str, found: list[str]) -> None:
    assert list(missing(text, ROOT / "ARCHITECTURE.md")) == found


def test_the_architecture_fits_in_200_lines() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 200
