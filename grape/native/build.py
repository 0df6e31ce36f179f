"""Compiles the extension, once for each torch, Python and source, also where several processes ask at the same time.

The compiler is called directly: `torch.utils.cpp_extension` needs ninja and setuptools, and this is one file.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

SOURCES = Path(__file__).parent / "src"
_NAME = "grape_streams"
_NO_COMPILER = "there is no C++ compiler; install one with: apt-get install g++"


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why there are no operator streams, in one line."""

    reason: str


def load() -> ModuleType | Unavailable:
    """The extension; the first call for a torch builds it, in about half a minute."""
    global _loaded
    if _loaded is None:
        _loaded = _load()
    return _loaded


def ready() -> bool:
    """True when `load` would not build."""
    return _loaded is not None or _artifact().exists()


def built() -> ModuleType | None:
    """The extension, where it is there without a build."""
    found = load() if ready() else None
    return None if isinstance(found, Unavailable) else found


def missing() -> Unavailable | None:
    """The reason why nothing can be built; None where nothing is missing."""
    return None if _compiler() else Unavailable(_NO_COMPILER)


def said(build: subprocess.Popen[bytes]) -> str:
    """Why a build that ended did not succeed."""
    assert build.stderr is not None
    with build.stderr as output:
        last = output.read().decode(errors="replace").strip().rpartition("\n")[2]
    return last or f"the build of operator streams ended with {build.returncode}"


def start() -> subprocess.Popen[bytes] | None:
    """Build in another process, unless it is built. `ready` tells when that has ended well, `said` why it did not."""
    if ready():
        return None
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "grape.native"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": path},
        stdin=quiet,
        stdout=quiet,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


_loaded: ModuleType | Unavailable | None = None


def _load() -> ModuleType | Unavailable:
    artifact = _artifact()
    if not artifact.exists():
        failed = _build(artifact)
        if failed:
            return failed
    try:
        loader = importlib.machinery.ExtensionFileLoader(_NAME, str(artifact))
        spec = importlib.util.spec_from_loader(_NAME, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        return Unavailable(f"the extension cannot be loaded: {_first_line(str(error))}")
    return module


def _build(artifact: Path) -> Unavailable | None:
    try:
        artifact.parent.mkdir(parents=True, exist_ok=True)
        with _locked(artifact.with_suffix(".lock")):
            return None if artifact.exists() else _compile(artifact)
    except OSError as error:
        return Unavailable(f"the extension cannot be written to {artifact.parent}: {error.strerror}")


def _compile(artifact: Path) -> Unavailable | None:
    compiler = _compiler()
    if compiler is None:
        return Unavailable(_NO_COMPILER)
    made = artifact.with_suffix(f".{os.getpid()}.part")
    command = [*compiler, *_flags(), f"-I{SOURCES}", str(SOURCES / "module.cpp"), "-o", str(made), *_libraries()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return Unavailable(f"the extension does not compile: {_error(done.stderr)}")
        made.replace(artifact)
    finally:
        made.unlink(missing_ok=True)
    return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compiler() -> list[str] | None:
    given = os.environ.get("CXX")
    if given:
        return shlex.split(given) if shutil.which(shlex.split(given)[0]) else None
    found = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    return [found] if found else None


def _flags() -> list[str]:
    import torch

    include = Path(torch.__file__).parent / "include"
    standard = "c++20" if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13) else "c++17"
    python = sysconfig.get_paths()["include"]
    paths = [str(include), str(include / "torch/csrc/api/include"), python]
    return [
        f"-std={standard}",
        *("-O2", "-fPIC", "-shared", "-fvisibility=hidden"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-DTORCH_EXTENSION_NAME={_NAME}",
        *(part for path in paths for part in ("-isystem", path)),
    ]


def _libraries() -> list[str]:
    import torch

    return [f"-L{Path(torch.__file__).parent / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]


@cache
def _artifact() -> Path:
    """Where the extension lies: one folder for each torch, ABI, Python and source."""
    import torch
    from torch._appdirs import user_cache_dir

    digest = hashlib.sha256(
        repr((torch.__version__, torch.version.git_version, sys.implementation.cache_tag, _flags())).encode()
    )
    for source in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(source.relative_to(SOURCES).as_posix().encode() + source.read_bytes())
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or user_cache_dir(appname="torch_extensions")
    return Path(root) / f"{_NAME}_{digest.hexdigest()[:16]}" / f"{_NAME}.so"


def _error(output: str) -> str:
    lines = output.splitlines()
    return next((line.strip() for line in lines if "error" in line.lower()), _first_line(output))


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0] or "no message"
