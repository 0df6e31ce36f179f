"""Does what the report says of a cell's time add up, and are the times of its lines those that a profiler gives?

    python benchmarks/attribution.py FOLDER [NAME ...] [--device cpu|cuda] [--passes 3]   parts of cells
    python benchmarks/attribution.py --lines [--repeat 9]                                 lines of Python

Parts: each program of the folder (as of benchmarks/programs.py) runs in a process of its own, its marked cells under
`%%grape` and timed from outside. The parts of a report are those of its picture (`cell.spent`, on a GPU), and its lines
with what Grape took itself; each must be the cell's time within 3%. That is from the outside, until the report is
there: without what IPython takes to compile the cell and what drawing the report takes. Cells of less than 0.1 s are
shown, not judged: IPython takes milliseconds of them in other ways.

Lines: cells of Python alone, under `%%grape` and as a function under line_profiler, to be installed from PyPI. Each
line of at least 5% of the cell must take the same milliseconds, within 10%: of several runs the least, for what else
runs on the machine. On Python 3.12 or later: earlier ones have no events of lines. Exits with 1 where something is off.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import CodeType
from typing import Any

from programs import cells_of, run_cell

JUDGED_S = 0.1
OFF = 0.03
LINE_OFF = 0.10
JUDGED_SHARE = 0.05

# -- parts of cells ---------------------------------------------------------------------------------------------------


def shell_under_grape() -> Any:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    from grape.magics import load

    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    shell = InteractiveShell.instance(config=config)
    load(shell)
    return shell


def parts_of(cell: Mapping[str, Any]) -> dict[str, float | None]:
    """Milliseconds that each way to divide the cell adds up to; None where the report does not divide it so."""
    own_ms = sum(cell["own_ms"].values())
    lines = cell["lines"]
    now = [one for one in cell["spent"] or () if one["when"] == "after"]
    picture = [ms for one in now for name, ms in one.items() if name not in ("when", "total_ms")]
    watched = lines is not None and cell["watched"]
    return {
        "picture": sum(picture) if picture else None,
        "lines": sum(line["ms"] for line in lines["lines"]) + own_ms if watched else None,
    }


def attribution(program: Path, passes: int) -> list[dict[str, Any]]:
    """Of each run of each marked cell: what it took, and what its report adds up to."""
    import torch

    import grape

    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    shell, drawing = shell_under_grape(), Drawing()
    cells = cells_of(program.read_text())
    found = []
    for number in range(1, passes + 1):
        for index, (marked, source) in enumerate(cells):
            if number > 1 and not marked and index != len(cells) - 1:
                continue
            drawing.ms = 0.0
            took_s, _, error = run_cell(shell, f"%%grape --no-widget\n{source}" if marked else source)
            if error is not None:
                raise RuntimeError(f"cell {index}: {error}")
            if marked and grape.last is not None:
                cell = grape.last.to_dict()["cell"]
                cell["watched"] = cell["lines"] is not None and cell["lines"]["run"] == number
                took_ms = took_s * 1e3 - drawing.ms - compiling_ms(shell, source)
                found.append({"run": number, "cell": index, "took_ms": took_ms, "parts": parts_of(cell)})
    return found


class Drawing:
    """Milliseconds in which a report that is there is turned into text and HTML."""

    def __init__(self) -> None:
        from grape.magics.display import CellDisplay

        self.ms = 0.0
        finish = CellDisplay.finish

        def timed(*arguments: Any, **named: Any) -> None:
            start = time.perf_counter()
            finish(*arguments, **named)
            self.ms += (time.perf_counter() - start) * 1e3

        CellDisplay.finish = timed  # type: ignore[method-assign]


def compiling_ms(shell: Any, source: str) -> float:
    """Milliseconds that IPython takes to compile a cell, before anybody could know that it is there."""
    start = time.perf_counter()
    tree = shell.compile.ast_parse(shell.transform_cell(source))
    for node in tree.body:
        compile(ast.Module(body=[node], type_ignores=[]), "<cell>", "exec", shell.compile.flags)
    return (time.perf_counter() - start) * 1e3


def child(program: Path, passes: int, out: Path) -> None:
    """In a process of its own, which ends here."""
    status = 1
    try:
        os.chdir(out.parent)
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            found = attribution(program, passes)
        out.write_text(json.dumps(found))
        status = 0
    except BaseException:
        out.with_suffix(".log").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def measured(program: Path, passes: int, timeout: float) -> list[dict[str, Any]] | str:
    """The rows of one program, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        process = multiprocessing.get_context("fork").Process(target=child, args=(program, passes, out))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            return f"longer than {timeout:g} s"
        log = out.with_suffix(".log")
        if not out.is_file():
            return log.read_text().strip().splitlines()[-1] if log.is_file() else f"exit {process.exitcode}"
        rows: list[dict[str, Any]] = json.loads(out.read_text())
        return rows


def of_programs(programs: list[Path], passes: int, timeout: float) -> bool:
    """Print all rows; True where all that is judged adds up."""
    judged = wrong = 0
    worst = 0.0
    for program in programs:
        rows = measured(program, passes, timeout)
        if isinstance(rows, str):
            print(f"{program.stem:26s} {rows}", flush=True)
            wrong += 1
            continue
        for row in rows:
            shares = {name: ms / row["took_ms"] for name, ms in row["parts"].items() if ms is not None}
            is_judged = row["took_ms"] >= JUDGED_S * 1e3 and bool(shares)
            off = max((abs(share - 1) for share in shares.values()), default=0.0) if is_judged else 0.0
            judged, wrong, worst = judged + is_judged, wrong + (off > OFF), max(worst, off)
            said = ", ".join(f"{name} {share:.1%}" for name, share in shares.items()) or "not divided"
            mark = "" if off <= OFF else "  <- off"
            place = f"cell {row['cell']}, run {row['run']}"
            print(f"{program.stem:26s} {place:14s} {row['took_ms'] / 1e3:7.3f} s  {said}{mark}", flush=True)
    print(f"{judged} runs judged, {wrong} off by more than {OFF:.0%}, at most {worst:.1%}")
    return wrong == 0 < judged


# -- lines of Python --------------------------------------------------------------------------------------------------

CELLS = {
    "loop": """\
total = 0
for i in range(60):
    a = sum(range(20000))
    b = sorted(range(60000), reverse=True)
    total += len(str(a)) + len(b)
    c = [x * x for x in range(9000)]
text = ",".join(map(str, range(60000)))
""",
    "calls": """\
def inner(n):
    s = 0.0
    for k in range(40):
        s += sum(range(n))
    return s
def outer(n):
    a = inner(n)
    b = inner(2 * n)
    return a + b
for i in range(12):
    r = outer(1500)
    q = sorted(map(str, range(8000)))
""",
    "short": """\
x = 0
for i in range(3000):
    y = sum(range(300))
    x = x + len(list(range(900)))
    z = max(range(600))
""",
    "raises": """\
def fails(n):
    total = sum(range(n))
    raise ValueError(total)
caught = []
for i in range(120):
    try:
        fails(9000)
    except ValueError as error:
        caught.append(sum(range(4000)))
    done = sorted(range(3000), reverse=True)
""",
}


def under_grape(shell: Any, source: str, number: int) -> dict[int, float]:
    """Milliseconds of each line, in a run that is watched: the cell is new for Grape each time."""
    import grape

    run_cell(shell, f"%%grape --no-widget\n{source}# {number}\n")
    assert grape.last is not None
    lines = grape.last.to_dict()["cell"]["lines"]
    return {line["line"] - 1: line["ms"] for line in lines["lines"]}  # the magic's line is the first


def under_line_profiler(source: str) -> dict[int, float]:
    """The same of a function with these statements, and of the functions that they define."""
    from line_profiler import LineProfiler

    space: dict[str, Any] = {}
    exec(compiled(source), space)
    profiler = LineProfiler()
    for name in ("cell", *functions(source)):
        profiler.add_function(space[name])
    profiler.runcall(space["cell"])
    stats = profiler.get_stats()
    return {line: 1e3 * took * stats.unit for found in stats.timings.values() for line, _, took in found}


def compiled(source: str) -> CodeType:
    """Functions as they are, and all else as the body of `cell`, each at its own line."""
    tree = ast.parse(source)
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    (cell,) = ast.parse("def cell():\n    pass").body
    assert isinstance(cell, ast.FunctionDef)
    cell.body = [node for node in tree.body if not isinstance(node, ast.FunctionDef)]
    return compile(ast.Module(body=[*defined, cell], type_ignores=[]), "<lines>", "exec")


def functions(source: str) -> list[str]:
    return [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]


def compared(source: str) -> set[int]:
    """Lines that call no function of the cell: line_profiler counts these calls to the line, Grape to their lines."""
    names = set(functions(source))
    calls = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return set(range(1, source.count("\n") + 1)) - calls


def of_lines(repeat: int) -> bool:
    """Print each line that is judged; True where both agree."""
    shell = shell_under_grape()
    wrong = judged = 0
    for name, source in CELLS.items():
        ours, theirs = [], []
        for number in range(repeat):
            ours.append(under_grape(shell, source, number))
            theirs.append(under_line_profiler(source))
        whole_ms = sum(min(one.get(line, 0.0) for one in ours) for line in ours[0])
        for line in sorted(compared(source)):
            known, told = (min(one.get(line, 0.0) for one in runs) for runs in (theirs, ours))
            if known < JUDGED_SHARE * whole_ms:
                continue
            off = abs(told / known - 1)
            judged, wrong = judged + 1, wrong + (off > LINE_OFF)
            mark = "  <- off" if off > LINE_OFF else ""
            times = f"line_profiler {known:7.2f} ms  Grape {told:7.2f} ms"
            print(f"{name:8s} line {line:2d}  {times}  {off:5.1%} apart{mark}", flush=True)
    print(f"{judged} lines judged, {wrong} more than {LINE_OFF:.0%} apart")
    return wrong == 0 < judged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for each program")
    parser.add_argument("--lines", action="store_true", help="compare lines of Python with line_profiler's")
    parser.add_argument("--repeat", type=int, default=9)
    arguments = parser.parse_args()
    if arguments.lines:
        sys.exit(0 if of_lines(arguments.repeat) else 1)
    if arguments.folder is None:
        parser.error("a folder of programs, or --lines")
    folder = arguments.folder.resolve()
    programs = [folder / f"{name}.py" for name in arguments.names] or sorted(folder.glob("*.py"))
    if not programs or not all(program.is_file() for program in programs):
        parser.error(f"no such programs in {folder}")
    fixed = {"PYTHONHASHSEED": "0", "MPLBACKEND": "Agg"}
    if arguments.device == "cpu":
        fixed |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    if any(os.environ.get(name) != value for name, value in fixed.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **fixed})
    import torch  # noqa: F401  once, before the forks

    sys.exit(0 if of_programs(programs, arguments.passes, arguments.timeout) else 1)


if __name__ == "__main__":
    main()
