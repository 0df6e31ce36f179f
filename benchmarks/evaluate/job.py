"""What a row of the evaluation is: a cell as a person writes it, and the names that it uses."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

__all__ = ["LOOP", "Group", "Job", "NotPossible", "Row", "Size", "inference", "resetting", "training"]

T = TypeVar("T")

LOOP = "results = []\nfor given in inputs:\n    results.append(step(*given))\n"
"""The cell of most rows."""


class NotPossible(Exception):
    """The column cannot run the row; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Where a row runs, and whether with its real sizes or with tiny ones that only show that it runs."""

    quick: bool
    device: torch.device
    by_hand: bool = False
    """The optimizer must be one that a CUDA graph can hold."""

    def of(self, full: T, tiny: T) -> T:
        return tiny if self.quick else full

    @property
    def half(self) -> torch.dtype:
        """The dtype of inference."""
        return torch.float16 if self.device.type == "cuda" else torch.float32

    def capturable(self) -> dict[str, Any]:
        """Of Adam: where the whole step goes into a graph, it counts its steps on the device."""
        if self.by_hand and self.device.type != "cuda":
            raise NotPossible("the optimizer counts its steps on the host where there is no GPU")
        return {"capturable": True} if self.by_hand else {}

    def randn(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(*shape, device=self.device, dtype=dtype or self.half)

    def tokens(self, vocabulary: int, *shape: int) -> torch.Tensor:
        return torch.randint(3, vocabulary, shape, device=self.device)

    def build(self, make: Callable[[], nn.Module], dtype: torch.dtype | None = None) -> Any:
        """The module made where it will be: the host would take minutes for billions of random weights."""
        with torch.device(self.device):
            module = make()
        return module.to(self.device, dtype or self.half)


@dataclass(kw_only=True)
class Job:
    """A cell and its names. A run of it must do the same after `reset` as before."""

    names: dict[str, Any]
    first: str = ""
    """A cell that comes before all runs, and defines more."""
    cells: list[str] = field(default_factory=lambda: [LOOP])
    """A run is all of them, in turn."""
    steps: int = 0
    """Of one run; where `names` has `inputs`, as many as they are."""
    modules: Sequence[nn.Module] = ()
    """What a person hands to `torch.compile`."""
    function: str | None = None
    """The name of the function that a person hands to it instead."""
    reset: Callable[[], None] = lambda: None
    state: Callable[[], Sequence[torch.Tensor]] = tuple
    """What is compared after a run, beside `results`."""
    fixed: bool = False
    """A run is as long as it is. Others are made longer, until one can be timed."""
    by_hand: Callable[[], tuple[dict[str, Any], list[str]]] | str | None = None
    """How an expert writes it with CUDA graphs: names and cells instead of these; None where a graph of `step` for each
    shape is all, or why nobody can."""

    def results(self, names: dict[str, Any]) -> list[torch.Tensor]:
        """Copies of what the run gave, on the device."""
        leaves = [leaf for leaf in tree_leaves(names.get("results")) if isinstance(leaf, (torch.Tensor, int, float))]
        return [torch.as_tensor(leaf).detach().clone() for leaf in [*leaves, *self.state()]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`needs` are modules without which it cannot run. `ablations` are the techniques that it is made for."""

    name: str
    group: str
    what: str
    build: Callable[[Size], Job]
    needs: tuple[str, ...] = ()
    ablations: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    """Those that make sense, where not all do."""
    long: bool = False
    """Takes minutes; runs only where it is named."""
    program: Path | None = None
    """A whole program in the form of `programs.py`, instead of what `build` gives."""

    def lacking(self) -> list[str]:
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


class Group:
    """Rows that stand together on the page; `Group.row` is a decorator for what builds one."""

    def __init__(self, name: str, title: str, columns: tuple[str, ...] | None = None, said: str = "") -> None:
        """`said` is what others published of these."""
        self.name, self.title, self.columns, self.said = name, title, columns, said
        self.rows: list[Row] = []

    def row(
        self, what: str, *needs: str, ablations: tuple[str, ...] = (), long: bool = False
    ) -> Callable[[Callable[[Size], Job]], Callable[[Size], Job]]:
        def add(build: Callable[[Size], Job]) -> Callable[[Size], Job]:
            self.add(build.__name__, what, build, *needs, ablations=ablations, long=long)
            return build

        return add

    def add(
        self,
        name: str,
        what: str,
        build: Callable[[Size], Job],
        *needs: str,
        ablations: tuple[str, ...] = (),
        long: bool = False,
        program: Path | None = None,
    ) -> None:
        self.rows.append(
            Row(
                name=name,
                group=self.name,
                what=what,
                build=build,
                needs=needs,
                ablations=ablations,
                columns=self.columns,
                long=long,
                program=program,
            )
        )


def inference(
    size: Size, module: nn.Module, inputs: Sequence[tuple[Any, ...]], call: Callable[..., Any] | None = None
) -> Job:
    """`step` is a call of the module, or `call`, without gradients."""
    module.eval().requires_grad_(False)
    run = call or module

    def step(*given: Any) -> Any:
        with torch.no_grad():
            return run(*given)

    return Job(names={"step": step, "inputs": list(inputs), "model": module}, modules=[module])


def training(
    size: Size,
    module: nn.Module,
    inputs: Sequence[tuple[Any, ...]],
    loss: Callable[..., torch.Tensor],
    *,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    parameters: Sequence[torch.Tensor] | None = None,
    autocast: bool = True,
    lr: float = 1e-4,
) -> Job:
    """`step` is one of the optimizer against `loss`, which calls the module; in bfloat16 where there is a GPU."""
    module.train()
    for part in module.modules():  # else nobody could be compared: compilers draw other numbers
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    more = {} if make is torch.optim.SGD else size.capturable()
    optimizer = make(parameters or list(module.parameters()), lr=lr, **more)
    mixed = autocast and size.device.type == "cuda"

    def step(*given: Any) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(size.device.type, torch.bfloat16, enabled=mixed):
            value = loss(*given)
        value.backward()
        optimizer.step()
        return value.detach()

    return Job(
        names={"step": step, "inputs": list(inputs), "model": module, "optimizer": optimizer},
        modules=[module],
        reset=resetting([module], [optimizer]),
        state=lambda: [*module.parameters(), *module.buffers()],
    )


def resetting(modules: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> Callable[[], None]:
    """What puts state back, in place, to what it is now; the optimizers have none yet."""
    kept = [(one, one.detach().clone()) for module in modules for one in [*module.parameters(), *module.buffers()]]

    @torch.no_grad()
    def reset() -> None:
        for tensor, value in kept:
            tensor.copy_(value)
        for optimizer in optimizers:
            for tensor in tree_leaves([dict(entry) for entry in optimizer.state.values()]):
                if isinstance(tensor, torch.Tensor):
                    tensor.zero_()

    return reset
