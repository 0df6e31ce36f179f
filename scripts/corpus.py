"""The labelled corpus of cells under `tests/data/cells`: reading it, running it, and counting what the advisor found.

A file is one cell in the style of a real notebook, with the cell before it as setup::

    '''Greedy decoding that reads each token.'''
    # device: cpu
    # near-miss: GR102
    # %% setup
    ...
    # %% cell
    for _ in range(20):
        tokens.append(step(x).item())  # GR101

A comment of finding codes at the end of a line labels that line with these findings; no other is right. `near-miss`
names the codes that a careless rule would find here. With ``device: cpu`` the cell runs under a session on the tape;
with ``device: cuda`` evidence is recorded on fake CUDA tensors (`corpus_cuda`), and the other headers say what the
device would have measured. With ``cold: sin`` that operator takes long where it meets a shape for the first time, as
those do that make plans. With ``device: ranks`` so many ``ranks`` run the cell (`corpus_ranks`).

Cells may also stand in the tests of a rule, `tests/unit/test_rules_grnnn.py`, as a literal: ``CELLS = {name: text}``.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import io
import linecache
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from grape.model import Finding

from .corpus_cell import CorpusCell, linecached, statements

__all__ = ["CELLS", "TESTS", "CorpusCell", "Score", "cold", "load", "run_cell", "score"]

_ROOT = Path(__file__).resolve().parent.parent
CELLS = _ROOT / "tests" / "data" / "cells"
TESTS = _ROOT / "tests" / "unit"
_LABEL = re.compile(r"#((?:\s*GR\d{3})+)\s*$")
_HEADER = re.compile(r"# ([a-z-]+): (.*)")
_NAMES = {"setup": "In[1]", "cell": "In[2]"}


@dataclass(kw_only=True)
class Score:
    """Found and labelled findings, counted; a finding that comes twice is right once."""

    right: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    mistakes: list[str] = field(default_factory=list)

    def precision(self, code: str | None = None) -> float:
        right, wrong = self._sum(self.right, code), self._sum(self.wrong, code)
        return right / (right + wrong) if right + wrong else 1.0

    def recall(self, code: str | None = None) -> float:
        right, missed = self._sum(self.right, code), self._sum(self.missed, code)
        return right / (right + missed) if right + missed else 1.0

    @staticmethod
    def _sum(counts: Counter[str], code: str | None) -> int:
        return counts[code] if code is not None else sum(counts.values())


def load(folder: Path = CELLS, tests: Path = TESTS) -> tuple[CorpusCell, ...]:
    """All cells, in the order of their names. Raises `ValueError` for one that does not have the format."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    for path in tests.glob("test_rules_*.py"):
        texts |= _beside_tests(path)
    return tuple(_read(name, texts[name]) for name in sorted(texts))


def _beside_tests(path: Path) -> dict[str, str]:
    """The literal `CELLS` of a test file; empty where it has none."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CELLS":
            cells: dict[str, str] = ast.literal_eval(node.value)
            return cells
    return {}


def _read(name: str, text: str) -> CorpusCell:
    head, mark, rest = text.partition("# %% setup\n")
    setup, second, source = rest.partition("# %% cell\n")
    title = ast.get_docstring(ast.parse(head))
    if not mark or not second or not title:
        raise ValueError(f"{name}: a title, '# %% setup' and '# %% cell' are needed")
    headers = dict(match.groups() for line in head.splitlines() if (match := _HEADER.fullmatch(line)))
    parts = {"setup": setup, "cell": source}
    return CorpusCell(
        name=name,
        title=title,
        setup=setup,
        source=source,
        device=headers.get("device", "cpu"),
        headers=headers,
        labels=frozenset(
            (code, _NAMES[part], number)
            for part, body in parts.items()
            for number, line in enumerate(body.splitlines(), start=1)
            if (match := _LABEL.search(line))
            for code in match[1].split()
        ),
        near_misses=frozenset(headers.get("near-miss", "").split()),
    )


def run_cell(cell: CorpusCell) -> tuple[Finding, ...]:
    """The findings about one cell. Whatever it prints is dropped."""
    if cell.device == "cuda":
        from .corpus_cuda import record_cell

        with contextlib.redirect_stdout(io.StringIO()):
            return record_cell(cell)
    if cell.device == "ranks":
        from .corpus_ranks import run_ranks

        return run_ranks(cell.setup, cell.source, int(cell.headers["ranks"]), _NAMES["cell"])
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with quiet[0], quiet[1], _main() as main, cold(cell.headers.get("cold")):
        return _on_the_tape(cell, main)


def _on_the_tape(cell: CorpusCell, main: ModuleType) -> tuple[Finding, ...]:
    import torch

    from grape.options import Options
    from grape.sessions import Cell, Session, engine

    engine().reset()
    torch.manual_seed(0)
    names = {f"<ipython-input-corpus-{cell.name}-{part}>": _NAMES[part] for part in ("setup", "cell")}
    files = dict(zip(("setup", "cell"), names, strict=True))
    statements(cell.setup, files["setup"], main.__dict__)
    linecached(cell.source, files["cell"])
    try:
        for _ in range(int(cell.headers.get("runs", "1"))):
            session = Session(
                options=Options(),
                cell=Cell(name=_NAMES["cell"], source=cell.source, filename=files["cell"]),
                namespace=main.__dict__,
                file_names=_not_the_person_s(lambda filename: names.get(filename, filename)),
            )
            session.open()
            failure: BaseException | None = None
            try:
                statements(cell.source, files["cell"], main.__dict__, after=session.statement_boundary)
            except Exception as error:
                failure = error
                raise
            finally:
                report = session.close(failure)
        return report.findings
    finally:
        engine().reset()
        for filename in names:
            linecache.cache.pop(filename, None)


def _not_the_person_s(function: Any) -> Any:
    """`function`, as of a file that is none of the person's: what ran of theirs has to be reached by names."""
    function.__code__ = function.__code__.replace(co_filename="<corpus>")
    return function


@contextlib.contextmanager
def cold(operator: str | None) -> Iterator[None]:
    """The pointwise operator of that name takes 10 ms more on the CPU where it meets a shape for the first time."""
    import torch

    if operator is None:
        yield
        return
    known = getattr(torch, {"sin": "cos", "cos": "sin"}[operator])
    planned: set[tuple[int, ...]] = set()
    sleep = ctypes.CDLL(None).usleep  # which nobody takes for an effect of the person's code

    def computed(x: torch.Tensor) -> torch.Tensor:
        if tuple(x.shape) not in planned:
            planned.add(tuple(x.shape))
            sleep(10_000)  # a plan is made; microseconds
        result: torch.Tensor = known(x)
        return result

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the kernel of the operator is another one now
        library = torch.library.Library("aten", "IMPL")
        library.impl(operator, _not_the_person_s(computed), "CPU")
    try:
        yield
    finally:
        library._destroy()


@contextlib.contextmanager
def _main() -> Iterator[ModuleType]:
    """A fresh `__main__`, as a kernel has it."""
    known = sys.modules["__main__"]
    module = sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield module
    finally:
        sys.modules["__main__"] = known


def score(cells: Iterable[CorpusCell]) -> Score:
    """Run the cells and compare what was found with their labels, code and line."""
    total = Score()
    for cell in cells:
        found = Counter((f.code, f.at.file if f.at else "", f.at.line if f.at else 0) for f in run_cell(cell))
        labels = Counter(dict.fromkeys(cell.labels, 1))
        for kind, counts, items in (
            ("right", total.right, found & labels),
            ("wrong", total.wrong, found - labels),
            ("missed", total.missed, labels - found),
        ):
            for (code, file, line), count in items.items():
                counts[code] += count
                if kind != "right":
                    total.mistakes.append(f"{cell.name}: {kind} {code} at {file}, line {line}")
    return total
