"""Precision and recall of the advisor on the labelled corpus, per code and over all.

    python -m scripts.corpus_report [--verbose] [CELL ...]

`--verbose` prints every finding of the named cells (or of all). Exits with 1 where precision or recall over all is
below 0.95.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")

from grape.model import CODES

from .corpus import load, run_cell, score

TARGET = 0.95


def main() -> int:
    parser = argparse.ArgumentParser(description="Precision and recall on the labelled corpus of cells.")
    parser.add_argument("cells", nargs="*", metavar="CELL", help="names of cells; default: all")
    parser.add_argument("--verbose", action="store_true", help="print every finding")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    cells = [cell for cell in load() if not arguments.cells or cell.name in arguments.cells]
    if arguments.verbose:
        for cell in cells:
            print(f"== {cell.name}: {cell.title}")
            for finding in run_cell(cell):
                print(f"   {finding.code} {finding.at} {finding.severity} [{finding.region}]: {finding.message}")
                print(f"      fix: {finding.advice}")
    result = score(cells)
    print(f"{len(cells)} cells, {sum(len(cell.labels) for cell in cells)} labelled findings")
    print("| code | name | cells with it | near misses | right | wrong | missed | precision | recall |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for code, name in CODES.items():
        positive = sum(code in cell.codes for cell in cells)
        near = sum(code in cell.near_misses and code not in cell.codes for cell in cells)
        counts = f"{result.right[code]} | {result.wrong[code]} | {result.missed[code]}"
        measures = f"{result.precision(code):.3f} | {result.recall(code):.3f}"
        print(f"| {code} | {name} | {positive} | {near} | {counts} | {measures} |")
    print(f"over all: precision {result.precision():.3f}, recall {result.recall():.3f}")
    for mistake in result.mistakes:
        print(f"  {mistake}")
    return 0 if min(result.precision(), result.recall()) >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
