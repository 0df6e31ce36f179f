"""Random functions with nested control flow over tensors, generated as source from a seed; and how they are run."""

from __future__ import annotations

import random
import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from grape.rewrite.control_flow import RewrittenFlow, rewrite_control_flow
from grape.runtime.backends.protocol import Backend, CaptureFailed
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.predication import NodeLowering, survey
from grape.runtime.predication.lowering.select import SelectLowering
from grape.tracing import PositionFinder

__all__ = ["INPUTS", "Cell", "Program", "SelectsOnly", "bits", "call", "replays"]

CPU = torch.device("cpu")


class SelectsOnly(ReferenceBackend):
    """A backend without conditional bodies, as CUDA's is unless they are switched on."""

    @property
    def conditional_bodies(self) -> bool:
        return False


@dataclass
class Program:
    """One random function `program(a, b, c, cell, count)` as source."""

    seed: int
    lines: list[str] = field(default_factory=list)
    budget: int = 7

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._loops = 0
        self._result = self._choice(["{0}", "{0} * 2", "({0}, {1})", "({0}, cell.state, {1})"])

    def source(self) -> str:
        self.lines = ["def program(a, b, c, cell, count):"]
        self._block(1, in_loop=False)
        self._emit(1, self._return())
        return "\n".join(self.lines) + "\n"

    def cell(self) -> str:
        """The same statements at the top of a notebook cell, where names are global and nothing returns."""
        body = [line[4:] for line in self.source().splitlines()[1:]]
        return "\n".join(re.sub(r"return .*", "pass", line) for line in body) + "\n"

    def _choice(self, options: list[str]) -> str:
        return self._random.choice(options)

    def _emit(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def _return(self) -> str:
        return "return " + self._result.format(self._name(), self._name())

    # -- expressions -------------------------------------------------------------------------------------------------

    def _name(self) -> str:
        return self._choice(["a", "b", "c"])

    def _value(self) -> str:
        x, y = self._name(), self._name()
        return self._choice(
            [
                f"{x} + {y}",
                f"{x} - {y} * 0.5",
                f"{x} * -0.0",
                f"{x} / {y}",
                f"torch.relu({x})",
                f"{x}.clone()",
                x,
                f"torch.sqrt({x})",
                f"({x} if {self._condition()} else {y} * 2)",
                f"{x}.index_select(0, {y}.argsort())",
                f"cell.state + {x}",
            ]
        )

    def _condition(self, depth: int = 0) -> str:
        x, y = self._name(), self._name()
        options = [
            f"{x}.sum() > {y}.sum()",
            f"{x}[0] < {y}[1]",
            f"{x}.mean() > 0",
            f"{x}[2]",
            f"{x}.amax() < 2",
            f"({x} > {y}).any()",
            "count > 2",
            f"torch.isnan({x}).any()",
        ]
        if depth < 2 and self._random.random() < 0.35:
            one, other = self._condition(depth + 1), self._condition(depth + 1)
            return self._choice([f"({one} and {other})", f"({one} or {other})", f"not ({one})", "flag", "not flag"])
        return self._choice(options)

    # -- statements --------------------------------------------------------------------------------------------------

    def _block(self, depth: int, *, in_loop: bool) -> None:
        if depth == 1:
            self._emit(1, "flag = False")
        for _ in range(self._random.randint(1, 3 if depth > 1 else 5)):
            self._statement(depth, in_loop=in_loop)

    def _statement(self, depth: int, *, in_loop: bool) -> None:
        self.budget -= 1
        compound = depth < 5 and self.budget > 0
        kind = self._random.random()
        if compound and kind < 0.30:
            self._if(depth, in_loop=in_loop)
        elif compound and kind < 0.40 and self._loops < 2:
            self._for(depth)
        elif compound and kind < 0.47 and self._loops < 2:
            self._while(depth)
        elif compound and kind < 0.50:
            self._emit(depth, "with torch.no_grad():")
            self._block(depth + 1, in_loop=in_loop)
        elif kind < 0.55 and depth > 1:
            self._jump(depth, in_loop=in_loop)
        else:
            self._simple(depth)

    def _if(self, depth: int, *, in_loop: bool) -> None:
        self._emit(depth, f"if {self._condition()}:")
        self._block(depth + 1, in_loop=in_loop)
        if self._random.random() < 0.3:
            self._emit(depth, f"elif {self._condition()}:")
            self._block(depth + 1, in_loop=in_loop)
        if self._random.random() < 0.5:
            self._emit(depth, "else:")
            self._block(depth + 1, in_loop=in_loop)

    def _for(self, depth: int) -> None:
        self._loops += 1
        name = f"i{self._loops}"
        iterated = self._choice(["range(3)", "[0, 2, 1]", "range(count)"])
        self._emit(depth, f"for {name} in {iterated}:")
        self._block(depth + 1, in_loop=True)
        if self._random.random() < 0.6:
            self._emit(depth + 1, f"if {self._condition()}:")
            self._jump(depth + 2, in_loop=True)
            self._simple(depth + 1)
        if self._random.random() < 0.3:
            self._emit(depth, "else:")
            self._block(depth + 1, in_loop=False)

    def _while(self, depth: int) -> None:
        self._loops += 1
        name = f"k{self._loops}"
        self._emit(depth, f"{name} = 0")
        self._emit(depth, f"while {self._condition()} and {name} < 3:")
        self._emit(depth + 1, f"{name} = {name} + 1")
        self._block(depth + 1, in_loop=True)
        if self._random.random() < 0.2:
            self._emit(depth, "else:")
            self._block(depth + 1, in_loop=False)

    def _jump(self, depth: int, *, in_loop: bool) -> None:
        kind = self._random.random()
        if in_loop and kind < 0.75:
            self._emit(depth, self._choice(["break", "continue"]))
        else:
            self._emit(depth, self._return())

    def _simple(self, depth: int) -> None:
        x, y = self._name(), self._name()
        self._emit(
            depth,
            self._choice(
                [
                    f"{x} = {self._value()}",
                    f"{x} = {self._value()}",
                    f"{x} = {self._value()}",
                    f"{x}, {y} = {self._value()}, {self._value()}" if x != y else f"{x} = {self._value()}",
                    f"{x} += {y}",
                    f"{x} = {x}.clone(); {x} += {y}; {x}[3] = {y}[0]",
                    f"{x} = {x} * 1; {x}.sub_({y})",
                    f"{x} = {x}.clone(); {x}.mul_(2)",
                    f"{x}[1] = {y}[0] * 3",
                    f"t = {self._value()}; {x} = t - {y}",
                    f"cell.state = {self._value()}",
                    f"cell.table['k'] = {self._value()}",
                    f"torch.add({x}, {y}, out=cell.buffer)",
                    "flag = True",
                    f"flag = {self._condition()}",
                    "pass",
                ]
            ),
        )


class Cell:
    """State that a program may write: an attribute, an item of a dict, memory."""

    def __init__(self, scale: float, device: torch.device = CPU) -> None:
        self.state = torch.full((4,), scale, device=device)
        self.table = {"k": torch.full((4,), -scale, device=device)}
        self.buffer = torch.zeros(4, device=device)


INPUTS = (
    ([1.0, -2.0, 3.0, 0.5], [0.5, 0.5, -1.0, 2.0], [0.0, 0.0, 0.0, 0.0], 3),
    ([-1.0, -0.0, 0.0, 4.0], [float("nan"), 1.0, 2.0, -3.0], [1.0, 1.0, 1.0, 1.0], 1),
    ([0.0, 0.0, 0.0, 0.0], [5.0, 6.0, 7.0, 8.0], [float("inf"), -1.0, -0.0, 2.0], 2),
    ([10.0, 0.1, 0.2, 0.3], [-10.0, -0.1, -0.2, -0.3], [-5.0, 2.0, 2.0, 2.0], 4),
)


def bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, tuple(value.shape), value.stride(), value.detach().view(torch.uint8).tolist()
    if isinstance(value, tuple):
        return tuple(map(bits, value))
    return type(value), value


def call(source: str, inputs: tuple[Any, ...], select: SelectLowering | None = None, device: torch.device = CPU) -> Any:
    """What the program returns or raises, and what it leaves in its arguments and its cell."""
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(source, "program", "exec"), namespace)
    a, b, c = (torch.tensor(values, device=device) for values in inputs[:3])
    cell = Cell(1.5, device)
    held = (a, b, c, cell.state, cell.table["k"], cell.buffer)
    try:
        if select is None:
            result = bits(namespace["program"](a, b, c, cell, inputs[3]))
        else:
            with select.active():
                result = namespace["program"](a, b, c, cell, inputs[3])
            result = bits(result)
    except (NameError, TypeError) as error:
        result = type(error).__name__
    return result, bits(held), bits((cell.state, cell.table["k"], cell.buffer))


def replays(source: str, seed: int, backend: Backend) -> Counter[str]:
    """Capture one program and replay it on all inputs: identical to plain Python, or refused."""
    made = rewrite_control_flow(source, filename="program")
    if not isinstance(made, RewrittenFlow):
        return Counter({"not rewritten": 1})
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(made.source, "program", "exec"), namespace)
    given = tuple(torch.tensor(values, device=backend.device) for values in INPUTS[0][:3])
    count = INPUTS[seed % 4][3]
    left: list[Any] = []

    def run() -> Any:
        cell = Cell(1.5, backend.device)
        held = (*given, cell.state, cell.table["k"], cell.buffer)
        result = namespace["program"](*given, cell, count)
        return result, held, (cell.state, cell.table["k"], cell.buffer)

    def body() -> None:
        with lowering.active():
            left.append(run())

    try:
        with torch.no_grad():
            surveyed = survey(backend, run, given, PositionFinder())
            lowering = NodeLowering(backend, surveyed.choices, nullcontext)
            graph, _ = backend.capture(body)
    except (CaptureFailed, NameError, TypeError) as refusal:
        return Counter({f"refused: {refusal}": 1})
    for values in INPUTS:
        expected = call(source, (*values[:3], count), device=backend.device)
        for tensor, numbers in zip(given, values[:3], strict=True):
            tensor.copy_(torch.tensor(numbers))
        graph.replay()
        backend.synchronize()
        found = tuple(bits(part) for part in left[0])
        assert found == expected, f"seed {seed}, inputs {values}, count {count}\n{source}\n{made.source}"
    graph.release()
    return Counter({"identical": 1, "marks": lowering.arms.count})
