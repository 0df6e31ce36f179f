"""What Grape takes from cells in which there is nothing to gain: each plain, and under ``%%grape``, in one shell.

    python benchmarks/overhead.py [--runs 7]

The whole time of the cell is measured, until its report is there. Prints milliseconds: the median of the plain runs,
the first run under Grape, the median from the second one on, and that over plain.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import tempfile
import time
from typing import Any

SETUP = """\
import numpy as np, torch
torch.manual_seed(0)
matrix, values, small = torch.randn(300, 300), torch.randn(3000), np.arange(8.0)
def add(x):
    return x + 1
"""
CELLS = {
    "an empty cell": "pass",
    "10^6 iterations of Python": "total = 0\nfor i in range(1_000_000):\n    total += i",
    "20,000 NumPy operations": "for i in range(20_000):\n    array = small + 1",
    "3,000 reads": "total = 0.0\nfor i in range(3000):\n    total += values[i].item()",
    "200 large products": "for i in range(200):\n    product = matrix @ matrix",
    "300,000 Python calls": "for i in range(300_000):\n    add(i)",
}


def _shell() -> Any:
    os.environ.setdefault("IPYTHONDIR", tempfile.mkdtemp())
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.display_pub = CapturingDisplayPublisher()
    shell.history_manager.enabled = False
    return shell


def _took_ms(shell: Any, source: str) -> float:
    with contextlib.redirect_stdout(io.StringIO()):
        began = time.perf_counter()
        result = shell.run_cell(source, store_history=True)
        took = (time.perf_counter() - began) * 1e3
    result.raise_error()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    shell = _shell()
    _took_ms(shell, SETUP)
    plain = {name: [_took_ms(shell, source) for _ in range(runs)] for name, source in CELLS.items()}
    shell.run_line_magic("load_ext", "grape")
    print(f"{'cell':<28}{'plain':>10}{'first':>10}{'later':>10}{'ratio':>8}")
    for name, source in CELLS.items():
        under = [_took_ms(shell, f"%%grape\n{source}") for _ in range(runs)]
        before, later = statistics.median(plain[name]), statistics.median(under[1:])
        print(f"{name:<28}{before:>10.1f}{under[0]:>10.1f}{later:>10.1f}{later / before:>8.2f}")


if __name__ == "__main__":
    main()
