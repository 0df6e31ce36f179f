"""Python in a process of its own: for what cannot be undone in this one, or has to come first in one.

A `Program` is a fork of a process that has imported torch and Grape and has run nothing: to import them takes seconds,
which most tests are not about. What is about a start, an end or the names of modules gets a new interpreter.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import random
import runpy
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import traceback
import types
import warnings
import weakref
from collections.abc import Callable, Mapping
from multiprocessing import process
from pathlib import Path
from unittest import mock

import numpy

ROOT = Path(__file__).parents[1]
M_MMAP_THRESHOLD = -3
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.warm"])
_KEPT: list[object] = []


def environment_of(*folders: Path) -> dict[str, str]:
    """This process's, in which modules are found in Grape's folder and in `folders`."""
    places = [*map(str, (ROOT, *folders)), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(places)}


class Program:
    """A running program: `words` are those behind `python`."""

    def __init__(self, *words: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> None:
        given = environment_of() if environment is None else environment
        folder = Path(tempfile.mkdtemp(prefix="grape-program-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._files = [folder / name for name in ("out", "err")]
        request = (words, str(cwd), dict(given), [*map(str, self._files)])
        self._process = _FORKS.Process(target=_run, args=request, daemon=True)
        main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")  # it would be run again
        try:
            with mock.patch.dict(os.environ, environment_of()):  # the process that forks may have to be started
                self._process.start()
        finally:
            sys.modules["__main__"] = main
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def is_itself(self) -> bool:
        """Whether it is the program by now, in a process group of its own."""
        return self._files[-1].exists()

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int | None:
        self._process.join()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; what it wrote to its standard output and its standard error."""
        self._process.join(timeout)
        if self._process.is_alive():
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return self.out(), self.err()

    def out(self) -> str:
        """What it has written to its standard output so far."""
        return self._files[0].read_text() if self.is_itself() else ""

    def err(self) -> str:
        """The same of its standard error."""
        return self._files[1].read_text() if self.is_itself() else ""


def ran(
    *words: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """What came of a program."""
    program = Program(*words, cwd=cwd, environment=environment)
    try:
        out, err = program.communicate(timeout)
    finally:
        program.kill()
    assert program.returncode is not None
    return subprocess.CompletedProcess(words, program.returncode, out, err)


def _run(words: tuple[str, ...], cwd: str, environment: dict[str, str], files: list[str]) -> None:
    """Be `python *words`, in the process that was forked, to its end."""
    code = 1
    try:
        _begin(cwd, environment, files)
        _execute(*words)
        code = 0
    except SystemExit as ends:
        code = ends.code if isinstance(ends.code, int) else int(ends.code is not None)
        if code and not isinstance(ends.code, int):
            print(ends.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # what the program holds is not taken apart: a group of gloo's may never end then


def _begin(cwd: str, environment: dict[str, str], files: list[str]) -> None:
    me = multiprocessing.current_process()
    me.name, me._config["daemon"], process._parent_process = "MainProcess", False, None
    os.setsid()
    for number, file in enumerate(files, start=1):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = ["", *paths, *(path for path in sys.path if path not in ("", *paths))]
    random.seed()
    numpy.random.seed()


def _execute(kind: str, *rest: str) -> None:
    if kind == "-W":
        warnings.simplefilter(rest[0])
        _execute(*rest[1:])
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    elif kind == "-m":
        sys.argv = [*rest]
        _KEPT.append(runpy.run_module(rest[0], run_name="__main__", alter_sys=True))
    else:
        sys.argv = [kind, *rest]
        sys.path[0] = os.path.dirname(os.path.abspath(kind))
        _KEPT.append(runpy.run_path(kind, run_name="__main__"))


def lines_of(code: str, *folders: Path) -> list[str]:
    """What `code` prints as a program, which also finds modules in `folders`. It has to end well."""
    return _lines(ran("-W", "ignore", "-c", textwrap.dedent(code), environment=environment_of(*folders)))


def lines_of_an_interpreter(code: str) -> list[str]:
    """The same of a new interpreter, whose start and end are those of every other."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    return _lines(subprocess.run(command, capture_output=True, text=True, check=False, env=environment_of()))


def _lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def give_back_at_once() -> None:
    """Memory that is freed goes back to the system, from now on."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)


def in_a_fork(work: Callable[[], None]) -> None:
    """Call it in a forked process in which memory that is freed is given back at once. It has to end well."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            give_back_at_once()
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
