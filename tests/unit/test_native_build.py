"""The extension is built once, also by several processes; where it cannot be built, one line says why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grape.native import Unavailable, build

EMPTY = 'exec c++ -xc++ -shared -fPIC -o "$(echo "$@" | grep -o "[^ ]*[.]part")" /dev/null'
CHECK = "import sys, grape.native as n; found = n.load(); sys.exit(getattr(found, 'reason', 0) and 3)"


needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache and nothing loaded."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(build, "_loaded", None)
    build._artifact.cache_clear()
    yield tmp_path
    build._artifact.cache_clear()


def fake_compiler(folder: Path, script: str) -> str:
    path = folder / "cxx"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_without_a_compiler(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(elsewhere))
    monkeypatch.delenv("CXX", raising=False)
    assert not build.ready()
    assert build.load() == Unavailable("there is no C++ compiler; install one with: apt-get install g++")


def test_a_build_that_fails_says_why_in_one_line(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "echo 'In file included from x' >&2; echo 'fatal error: Python.h: No such file' >&2; exit 1"
    monkeypatch.setenv("CXX", fake_compiler(elsewhere, script))
    expected = "the extension does not compile: fatal error: Python.h: No such file"
    assert build.load() == Unavailable(expected)
    assert not list(elsewhere.rglob("*.part"))


def test_what_cannot_be_loaded_says_why(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'while [ "$1" != -o ]; do shift; done; echo nothing > "$2"'
    monkeypatch.setenv("CXX", fake_compiler(elsewhere, script))
    found = build.load()
    assert isinstance(found, Unavailable)
    assert found.reason.startswith("the extension cannot be loaded: ")


def test_a_cache_that_cannot_be_written(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "file").write_text("")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(elsewhere / "file"))
    found = build.load()
    assert isinstance(found, Unavailable)
    assert "cannot be written" in found.reason


@needs_compiler
def test_processes_that_build_at_once_compile_once(elsewhere: Path) -> None:
    counted = elsewhere / "count"
    script = f"echo x >> {counted}; sleep 1; {EMPTY}"
    environment = {**os.environ, "CXX": fake_compiler(elsewhere, script), "TORCH_EXTENSIONS_DIR": str(elsewhere)}
    together = [subprocess.Popen([sys.executable, "-c", CHECK], env=environment) for _ in range(2)]
    assert [process.wait() for process in together] == [3, 3]  # an empty library has no module in it
    assert counted.read_text() == "x\n"


@needs_compiler
def test_a_build_in_the_background(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", fake_compiler(elsewhere, EMPTY))
    process = build.start()
    assert process is not None
    process.wait()
    assert build.ready()
    assert build.start() is None


def test_other_sources_are_another_extension(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build._artifact()
    build._artifact.cache_clear()
    (elsewhere / "module.cpp").write_text("int x;")
    monkeypatch.setattr(build, "SOURCES", elsewhere)
    assert build._artifact() != before


def test_importing_grape_or_what_builds_imports_no_torch() -> None:
    code = "import sys, grape, grape.native; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
