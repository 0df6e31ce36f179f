"""The line to write where the numbers of an optimizer's step keep it out of a graph."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator

from ..model import Position
from .code.parsed import Parsed, last_name
from .code.source import CellSource

_FUSED = frozenset({"Adam", "AdamW", "SGD"})
_CAPTURABLE = frozenset({"ASGD", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"})
_NEITHER = frozenset({"Adafactor", "LBFGS", "SparseAdam"})
_RATE = 'a learning rate that changes has to be `torch.tensor(..., device="cuda")`'
_ELSE = (
    "then the step keeps its numbers on the device and joins the graph; the last bits of the results change, so Grape "
    f"does not switch it on; {_RATE}. As it is, forward and backward replay without the step"
)
_STREAMED = (
    "then the step keeps its numbers on the device and is issued with the rest; the last bits of the results change, "
    f"so Grape does not switch it on; {_RATE}"
)
_OF_STEPS = ("/torch/optim/", "/torch/amp/")
_ANY = "give the optimizer `fused=True` (Adam, AdamW, SGD) or `capturable=True`"


def advice_for_step(
    source: CellSource, at: Position | None, *, inner: Position | None = None, streamed: bool = False
) -> str | None:
    """The line that makes the optimizer, as it has to be written; None where no ``.step(...)`` of one stands at `at`.

    `inner`: where it happens, if that is known. `streamed`: operator streams serve the step, which runs in pieces; else
    a graph would hold it.
    """
    call = source.call(at, ("step",))
    elsewhere = inner is not None and at is not None and inner.file != at.file
    if call is None or not (_in_a_step(inner) if elsewhere else _takes_at_most_one(call)):
        return None
    made = _makers(source, call)
    kinds = {_kind(node) for _, node in made}
    if len(kinds) == 1 and kinds <= _NEITHER:
        return f"leave it: `{kinds.pop()}` takes neither `fused=True` nor `capturable=True`, its numbers are the host's"
    if streamed and made and all(_follows(node) for _, node in made):
        return _RATE
    written = {_on_device(parsed, node) for parsed, node in made}
    line = written.pop() if len(written) == 1 else None
    return f"{f'write `{line}`' if line else _ANY}: {_STREAMED if streamed else _ELSE}"


def _in_a_step(inner: Position | None) -> bool:
    """True in torch's code of optimizers and scalers: samplers, schedulers and environments have a ``step``, too."""
    return inner is not None and any(part in inner.file.replace("\\", "/") for part in _OF_STEPS)


def _takes_at_most_one(call: str) -> bool:
    """A closure, or the optimizer of a scaler; what takes more, as ``sampler.step(noise, t, x)``, is something else."""
    with contextlib.suppress(SyntaxError):
        node = ast.parse(call, mode="eval").body
        return not isinstance(node, ast.Call) or len(node.args) + len(node.keywords) <= 1
    return True


def counts_steps(source: CellSource, at: Position | None) -> str | None:
    """The name of the optimizer whose ``.step(...)`` stands at `at`, where it keeps a count of its steps; else None."""
    call = source.call(at, ("step",))
    kinds = {_kind(node) for _, node in (_makers(source, call) if call is not None else ())}
    kind = kinds.pop() if len(kinds) == 1 else ""
    return kind if kind in (_FUSED | _CAPTURABLE) - {"SGD"} else None


def _makers(source: CellSource, call: str) -> list[tuple[Parsed, ast.Assign]]:
    """Where the optimizer of ``opt.step()``, ``scaler.step(opt)`` or ``opt.step(closure)`` is made."""
    return next((made for name in _stepped(call) if (made := list(_made(source, name)))), [])


def _stepped(call: str) -> Iterator[str]:
    """The names that may be the optimizer's: an argument's, else that of whom it is a method."""
    with contextlib.suppress(SyntaxError):
        node = ast.parse(call, mode="eval").body
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            for owner in (*node.args[:1], node.func.value):
                if isinstance(owner, (ast.Name, ast.Attribute)):
                    yield last_name(owner)


def _kind(node: ast.Assign) -> str:
    return last_name(node.value.func) if isinstance(node.value, ast.Call) else ""


def _made(source: CellSource, name: str) -> Iterator[tuple[Parsed, ast.Assign]]:
    """Where `name` is assigned what a call returns."""
    for parsed in source.naming(name) if name else ():
        for node in parsed.nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                targets = [target for target in node.targets if isinstance(target, (ast.Name, ast.Attribute))]
                if any(last_name(target) == name for target in targets):
                    yield parsed, node


def _follows(node: ast.Assign) -> bool:
    """True where its numbers are on the device already."""
    assert isinstance(node.value, ast.Call)
    return any(given.arg in ("fused", "capturable") for given in node.value.keywords)


def _on_device(parsed: Parsed, node: ast.Assign) -> str | None:
    """The assignment with the optimizer's numbers on the device; None for one that this does not help."""
    call = node.value
    assert isinstance(call, ast.Call)
    kind = last_name(call.func)
    keyword = "fused" if kind in _FUSED else "capturable" if kind in _CAPTURABLE else None
    if keyword is None or any(given.arg in (None, "fused", "capturable") for given in call.keywords):
        return None
    given = [parsed.text(argument, "...") for argument in call.args]
    given += [
        f"{k.arg}={parsed.text(k.value, '...')}" for k in call.keywords if (keyword, k.arg) != ("fused", "foreach")
    ]
    targets = "".join(f"{parsed.text(target)} = " for target in node.targets)
    return f"{targets}{parsed.text(call.func)}({', '.join([*map(str, given), f'{keyword}=True'])})"
