"""One plain run of a script or of a notebook's cells, without Grape: ``python -m ... SPEC.json``. What it computed and
how long it took goes to the file that the specification names; its output is its own.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TypedDict

from ..scripts.main_module import become_main, statements
from .digests import Digests, digests_of, random_digests

_IMPORTS = (ast.Import, ast.ImportFrom)


class Spec(TypedDict):
    """The program to run, and the file for what it did."""

    kind: str
    path: str
    words: list[str]
    source: str
    cells: list[tuple[int, str]]
    changed: list[int]
    watch: bool
    out: str


class Told(TypedDict):
    """What it did."""

    seconds: float
    code: int
    error: str | None
    digests: dict[str, str]
    not_compared: dict[str, str]


class _Watch:
    """Digests of what functions hold that the top of a script calls, when they return: most scripts work in `main`."""

    def __init__(self, namespace: dict[str, object]) -> None:
        self._namespace = namespace
        self.seen = Digests()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        caller = frame.f_back
        if event != "return" or frame.f_globals is not self._namespace or caller is None:
            return
        if caller.f_globals is self._namespace and caller.f_code.co_name == "<module>":
            sys.setprofile(None)
            try:
                for name, value in list(frame.f_locals.items()):
                    self.seen.add(f"{frame.f_code.co_name}(): {name}", value)
            finally:
                sys.setprofile(self)


def run_script(spec: Spec) -> Told:
    """`seconds` leaves imports at the top out, which no rewrite changes."""
    source = Path(spec["source"]).read_bytes()
    file = os.path.abspath(spec["path"])
    namespace = become_main(Path(spec["path"]), spec["words"], spec["path"])
    watch = _Watch(namespace)
    code, error, took = 0, None, 0.0
    try:
        for tree, statement, _ in statements(source, file):
            began = time.perf_counter()
            try:
                sys.setprofile(watch if spec["watch"] else None)
                exec(statement, namespace)
            finally:
                sys.setprofile(None)
                took += 0.0 if isinstance(tree.body[0], _IMPORTS) else time.perf_counter() - began
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException as raised:
        code, error = 1, f"{type(raised).__name__}: {raised}"
    return _told(namespace, watch.seen, seconds=took, code=code, error=error)


def run_cells(spec: Spec) -> Told:
    """`seconds` is that of the cells which the rewrite changes. Ends at the first error, as Run All does."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    shell = InteractiveShell.instance(config=config)
    took, error = 0.0, None
    for number, source in spec["cells"]:
        began = time.perf_counter()
        result = shell.run_cell(source, store_history=True)
        took += time.perf_counter() - began if number in spec["changed"] else 0.0
        failure = result.error_in_exec or result.error_before_exec
        if failure is not None:
            error = f"cell {number}: {type(failure).__name__}: {failure}"
            break
    hidden = shell.user_ns_hidden
    names = {name: value for name, value in shell.user_ns.items() if name not in hidden and not name.startswith("_")}
    return _told(names, Digests(), seconds=took, code=0, error=error)


def _told(names: dict[str, object], seen: Digests, *, seconds: float, code: int, error: str | None) -> Told:
    states = random_digests()
    top = digests_of(names)
    return {
        "seconds": seconds,
        "code": code,
        "error": error,
        "digests": {**top.found, **seen.found, **states},
        "not_compared": {**top.not_compared, **seen.not_compared},
    }


def main(file: str) -> None:
    spec: Spec = json.loads(Path(file).read_text(encoding="utf-8"))
    told = run_cells(spec) if spec["kind"] == "notebook" else run_script(spec)
    Path(spec["out"]).write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
