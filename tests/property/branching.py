"""Random functions whose operators need little of each other: views, writes in place, memory that is used again."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

__all__ = ["branching"]

SIDE = 8
MAKES = {
    "matmul": "{a} @ {b} * 0.1",
    "add": "{a} + {b}",
    "relu": "torch.relu({a})",
    "softmax": "torch.softmax({a}, -1)",
    "sum": "{a}.sum(0, keepdim=True).expand(8, 8) + {b}",
    "view": "{a}.t()[{n}:].reshape(-1, 8).mean(0) + {b}",
    "alias": "{a}.t()",
    "cat": "torch.cat([{a}[:4], {b}[4:]])",
}
CHANGES = {"in place": "{a}.mul_(0.5).add_({b}.clone())", "write": "{a}[1:3].copy_({b}[2:4].clone())"}


def branching(
    draw: random.Random, device: torch.device, operators: int = 40
) -> tuple[str, Callable[[torch.Tensor], list[torch.Tensor]]]:
    """A function of so many operators and its source: called with an 8 x 8 matrix, it returns a list of such.

    It draws nothing, and writes nothing from outside.
    """
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    given = {f"g{n}": torch.randn(SIDE, SIDE, generator=generator).to(device) for n in range(3)}
    lines, alive, made = ["def work(x):"], [], 0
    for _ in range(operators):
        kind = draw.choice((*MAKES, *CHANGES, "drop"))
        if kind in ("alias", "drop", *CHANGES) and len(alive) < 3:
            kind = "matmul"
        if kind == "drop":
            lines.append(f"    del {alive.pop(draw.randrange(len(alive)))}")
            continue
        sources = ["x", *given, *alive]
        a = draw.choice(alive if kind == "alias" or kind in CHANGES else sources)
        text = {**MAKES, **CHANGES}[kind].format(a=a, b=draw.choice(sources), n=draw.randrange(SIDE - 1))
        if kind in CHANGES:
            lines.append(f"    {text}")
            continue
        lines.append(f"    v{made} = {text}")
        alive.append(f"v{made}")
        made += 1
    lines.append(f"    return [{', '.join(f'{name}.clone()' for name in alive[-draw.randint(1, 4) :])}]")
    source = "\n".join(lines)
    namespace: dict[str, object] = {"torch": torch, **given}
    exec(source, namespace)
    function = namespace["work"]
    assert callable(function)
    return source, function
