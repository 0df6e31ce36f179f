"""Every workload against every peer: `python -m benchmarks.evaluate --out DIR [--quick]`.

A row is a program (`rows/`), a column a way to run it (`columns.py`). Each pair runs in a process of its own, beside
eager runs of the same program in the same process, and leaves one file in DIR/cells. What exists there is not made
again, so a run may be cut into parts: `--seconds S` ends one, `--part K/N` takes each N-th pair. Then the page and its
plots are made from all files: DIR/evaluation.md, DIR/evaluation.json; with `--write` also docs/evaluation.md, its
pictures, and benchmarks/results/evaluation.json.

`--quick` runs tiny sizes on the CPU, where a reference serves as graphs: it shows that every row runs, and no time. It
fails where one does not, or where Grape leaves other bits.
`--workers N` runs N pairs at a time, each on a GPU of its own. With `--shared` others use these GPUs, too, and what
the device holds is left out; times beside other work say little.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FIXED = {
    **{"PYTHONHASHSEED": "0", "MPLBACKEND": "Agg", "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"},
    **{"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},  # the latter does not touch the GPU
}

BARE = "EVALUATE_BARE"
"""Set in the environment where what others import beforehand has touched a GPU."""


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--only", nargs="+", metavar="ROW", help="rows or groups; rows that take minutes run only so")
    parser.add_argument("--columns", nargs="+", metavar="COLUMN")
    parser.add_argument("--part", default="1/1", metavar="K/N")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for everything")
    parser.add_argument("--each", type=float, default=20.0, help="seconds for the measuring of each pair")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds after which a pair is ended")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--shared", action="store_true", help="others use the GPUs: do not record what these hold")
    parser.add_argument("--programs", type=Path, help="a folder of public programs, in the form of programs.py")
    parser.add_argument("--again", action="store_true", help="make files anew that exist")
    parser.add_argument("--list", action="store_true", help="say what would run, and end")
    parser.add_argument("--page", action="store_true", help="make the page from the files, run nothing")
    parser.add_argument("--write", action="store_true", help="put the page into docs/")
    return parser.parse_args()


def main() -> int:
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what runs is ended then, too
    arguments = parsed()
    fixed = {**FIXED, **({"GRAPE_REFERENCE": "1", "CUDA_VISIBLE_DEVICES": ""} if arguments.quick else {})}
    if any(os.environ.get(name) != value for name, value in fixed.items()):
        _begin_anew(fixed)
    from _machine import SHARED

    from .plan import chosen
    from .running import Limits, left, run_all, runnable

    if not arguments.page:
        cells = left(chosen(arguments), arguments.out, again=arguments.again)
        if arguments.list:
            for cell in cells:
                lacks = ", ".join(cell.row.lacking())
                print(cell.row.name, cell.column, f"(lacks {lacks})" if lacks else "")
            return 0
        cells = runnable(cells, arguments.out)
        _prepare()
        if arguments.shared:
            os.environ[SHARED] = "1"
        ends = began + arguments.seconds
        limits = Limits(seconds=2.0 if arguments.quick else arguments.each, hard=arguments.limit, ends=ends)
        ran = run_all(cells, arguments.out, quick=arguments.quick, workers=arguments.workers, limits=limits)
        print(f"{ran} of {len(cells)} pairs in {time.monotonic() - began:.0f} s", flush=True)
    from .page import make, merged

    make(arguments.out, write=arguments.write)
    return int(arguments.quick and not all(_is_sound(one) for one in merged(arguments.out)))


def _is_sound(found: dict[str, Any]) -> bool:
    """Whether what ran on the CPU shows that the row runs; what others cannot do there is their affair."""
    if found["column"] != "grape" or found["outcome"] == "not installed":
        return True
    return found["outcome"] == "measured" and found.get("agreement", {}).get("identical", True)


def _begin_anew(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "benchmarks.evaluate", *sys.argv[1:]]
    os.execve(sys.executable, command, {**os.environ, **environment})


def _prepare() -> None:
    """What every process needs, once, before the forks; none of it may touch a GPU."""
    subprocess.run([sys.executable, "-m", "grape.native"], check=False, capture_output=True)

    if os.environ.get(BARE) is not None:
        return
    import IPython.core.interactiveshell  # noqa: F401

    import grape.magics  # noqa: F401

    with contextlib.suppress(Exception):  # one that is broken is the affair of its rows
        import transformers
        import transformers.generation.utils
        import transformers.modeling_utils

        transformers.logging.set_verbosity_error()
    if os.environ.get("CUDA_VISIBLE_DEVICES") != "" and not _forks_well():
        print("a process that was forked cannot use the GPU: each imports everything itself", flush=True)
        os.execve(
            sys.executable, [sys.executable, "-m", "benchmarks.evaluate", *sys.argv[1:]], {**os.environ, BARE: "1"}
        )


def _forks_well() -> bool:
    """Whether a process that is forked now can use the GPU, if there is one."""
    import torch

    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(Exception):
            if torch.cuda.is_available():
                torch.zeros(1, device="cuda")
            status = 0
        os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


if __name__ == "__main__":
    raise SystemExit(main())
