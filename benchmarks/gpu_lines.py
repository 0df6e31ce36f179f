"""Are the times of lines that wait for the GPU those that CUDA events give?

    python benchmarks/gpu_lines.py [--repeat 7]

Cells whose lines each give work to the GPU and read a result, under `%%grape`, and plainly with an event recorded in
front of each statement of their loops and another one behind it. Each line of at least 5% of the cell must take the
same milliseconds, within 10%: of several runs the least. Needs a GPU, and Python 3.12 or later, whose events of lines
time lines exactly. Exits with 1 where one is off.
"""

from __future__ import annotations

import argparse
import ast
import sys
from typing import Any

from attribution import JUDGED_SHARE, LINE_OFF, shell_under_grape, under_grape
from programs import run_cell

FIRST = """\
import torch
torch.manual_seed(0)
wide = torch.randn(6144, 6144, device="cuda") / 80
tall = torch.randn(40_000_000, device="cuda")
images = torch.randn(64, 64, 112, 112, device="cuda")
conv = torch.nn.Conv2d(64, 128, 3, padding=1).cuda()
net = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 4096)).cuda()
rows = torch.randn(8192, 4096, device="cuda")
"""

CELLS = {
    "inference": """\
with torch.no_grad():
    for i in range(12):
        a = (wide @ wide).sum().item()
        b = tall.sort().values[0].item()
        c = conv(images).mean().item()
        d = torch.fft.fft(tall).abs().max().item()
""",
    "training": """\
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for i in range(12):
    optimizer.zero_grad(set_to_none=False)
    loss = net(rows).square().mean(); forward = loss.item()
    loss.backward(); torch.cuda.synchronize()
    optimizer.step(); torch.cuda.synchronize()
""",
}


class Events:
    """Pairs of events by line; `__call__` is what the cell calls."""

    def __init__(self) -> None:
        self.pairs: dict[int, list[list[Any]]] = {}

    def __call__(self, line: int, *, begins: bool) -> None:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        if begins:
            self.pairs.setdefault(line, []).append([event])
        else:
            self.pairs[line][-1].append(event)

    def ms(self) -> dict[int, float]:
        return {line: sum(first.elapsed_time(last) for first, last in pairs) for line, pairs in self.pairs.items()}


class Marked(ast.NodeTransformer):
    """Events around the lines of loops; statements that share a line share them."""

    def visit_For(self, node: ast.For) -> ast.For:
        body: list[ast.stmt] = []
        for line in dict.fromkeys(statement.lineno for statement in node.body):
            here = [statement for statement in node.body if statement.lineno == line]
            body += [*_mark(line, begins=True), *here, *_mark(line, begins=False)]
        node.body = body
        return node


def _mark(line: int, *, begins: bool) -> list[ast.stmt]:
    return ast.parse(f"mark({line}, begins={begins})").body


def by_events(shell: Any, source: str) -> dict[int, float]:
    """Milliseconds of each line of the loops, in a plain run."""
    import torch

    events = shell.user_ns["mark"] = Events()
    torch.cuda.synchronize()
    run_cell(shell, ast.unparse(ast.fix_missing_locations(Marked().visit(ast.parse(source)))))
    torch.cuda.synchronize()
    return events.ms()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7)
    arguments = parser.parse_args()
    shell = shell_under_grape()
    run_cell(shell, FIRST)
    wrong = judged = 0
    for name, source in CELLS.items():
        run_cell(shell, source)
        ours, theirs = [], []
        for number in range(arguments.repeat):
            theirs.append(by_events(shell, source))
            ours.append(under_grape(shell, source, number))
        known = {line: min(one[line] for one in theirs) for line in theirs[0]}
        for line, ms in known.items():
            if ms < JUDGED_SHARE * sum(known.values()):
                continue
            told = min(one.get(line, 0.0) for one in ours)
            off = abs(told / ms - 1)
            judged, wrong = judged + 1, wrong + (off > LINE_OFF)
            mark = "  <- off" if off > LINE_OFF else ""
            print(f"{name:10s} line {line:2d}  events {ms:8.2f} ms  Grape {told:8.2f} ms  {off:5.1%} apart{mark}")
    print(f"{judged} lines judged, {wrong} more than {LINE_OFF:.0%} apart")
    sys.exit(0 if wrong == 0 < judged else 1)


if __name__ == "__main__":
    main()
