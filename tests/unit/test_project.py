"""The package itself: what importing it costs, what it offers, and that its pins and ranges agree."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import grape
from grape.errors import GrapeError

ROOT = Path(__file__).parents[2]


def in_a_fresh_process(code: str) -> object:
    """What `code` prints as JSON, run by a new interpreter in which nothing is imported yet."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


NEW_MODULES = """
import json, sys
before = set(sys.modules)
{statement}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.parametrize(
    "statement",
    [
        "import grape",
        "import grape; grape.errors.UsageError; grape.__version__; dir(grape)",
        "import grape; assert grape.last is None",
        "import grape; grape.load_ipython_extension",
        "import grape.model",
        "import grape.options",
    ],
)
def test_importing_grape_imports_itself_and_the_standard_library_only(statement: str) -> None:
    modules = in_a_fresh_process(NEW_MODULES.format(statement=statement))
    assert isinstance(modules, list)
    assert {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names) == {"grape"}


@pytest.mark.parametrize("package", ["advisor", "render", "rewrite"])
def test_the_functional_core_runs_without_torch_and_ipython(package: str) -> None:
    modules = in_a_fresh_process(NEW_MODULES.format(statement=f"import grape.{package}"))
    assert isinstance(modules, list)
    assert {"torch", "IPython"}.isdisjoint(modules)


AHEAD_OF_A_REPORT = """
import ipykernel
import grape.magics.extension
from grape.sessions import preload
from tests.unit.sample_evidence import sample
preload()
"""
REPORT = """
from grape.magics.view import _actions
from grape.render import build_report
from grape.render.timeline.view import build_view
report = build_report(*sample())
report.to_text(details=False), report.to_html(), build_view(report), _actions(report)
"""


def test_the_first_report_of_a_notebook_imports_nothing_of_grape() -> None:
    modules = in_a_fresh_process(AHEAD_OF_A_REPORT + NEW_MODULES.format(statement=REPORT))
    assert isinstance(modules, list)
    assert [name for name in modules if name.startswith("grape")] == []


def test_everything_on_offer_is_there() -> None:
    assert set(grape.__all__) <= set(dir(grape))
    names = set(grape.__all__) - {"__version__", "errors", "last"}
    assert [name for name in sorted(names) if not callable(getattr(grape, name))] == []


def test_session_stays_the_function_whatever_is_imported() -> None:
    import grape.sessions

    assert grape.session is grape.sessions.session
    assert not [name for name in grape.__all__ if name != "errors" and find_spec(f"grape.{name}")]


def test_an_unknown_name_is_an_attribute_error_that_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"module 'grape' has no attribute 'grph'; it offers .*graph, last"):
        grape.grph  # noqa: B018


def test_errors_have_one_root_and_distinct_exit_codes() -> None:
    kinds = [getattr(grape.errors, name) for name in grape.errors.__all__]
    assert all(issubclass(kind, GrapeError) for kind in kinds)
    codes = [kind.exit_code for kind in kinds]
    assert len(set(codes)) == len(codes)
    assert all(0 < code < 126 for code in codes)


def test_the_installed_version_is_the_one_in_the_source() -> None:
    assert importlib.metadata.version("grape-jupyter") == grape.__version__


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_everything_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["cuda"], *extras["mcp"]]
    declared = {normalized(Requirement(line).name) for line in lines}
    providers = {**importlib.metadata.packages_distributions(), "cuda": ["cuda-bindings"], "mcp": ["mcp"]}
    imported = set()
    for file in (ROOT / "grape").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                imported.add(node.module.partition(".")[0])
    foreign = imported - set(sys.stdlib_module_names) - {"grape"}
    assert {"torch", "numpy", "libcst"} <= foreign
    undeclared = {name for name in foreign if not {normalized(one) for one in providers.get(name, [])} & declared}
    assert undeclared == set()


def test_every_dependency_is_pinned_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    optional = [*extras["test"], *extras["examples"], *extras["mcp"]]
    needed = [Requirement(line) for line in [*project["dependencies"], *optional]]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {normalized(name): pin for name, pin in (line.split("==") for line in lines if not line.startswith("#"))}
    for requirement in needed:
        pin = pins.get(normalized(requirement.name))
        assert pin is not None, f"constraints.txt does not pin {requirement.name}"
        assert requirement.specifier.contains(pin), f"constraints.txt pins {requirement.name} outside {requirement}"
    assert pins["torch"] == "2.13.0"
