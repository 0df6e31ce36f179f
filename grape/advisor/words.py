"""How findings say things: times, counts, operator names, places in libraries."""

from __future__ import annotations

from collections.abc import Sequence

from ..model import CellEvidence, OpRecord, Position

_SPOKEN = {
    "_local_scalar_dense": "reading a value",
    "item": "reading a value",
    "is_nonzero": "reading a value",
    "equal": "`torch.equal`",
    "_unique2": "`torch.unique`",
    "unique_dim": "`torch.unique`",
    "unique_consecutive": "`torch.unique_consecutive`",
    "unique_dim_consecutive": "`torch.unique_consecutive`",
    "index": "boolean-mask indexing",
}


def operator_name(op: OpRecord) -> str:
    """The person's word for an operator: ``"aten._unique2.default"`` is `torch.unique`."""
    base = op.name.split(".")[1] if op.name.count(".") else op.name
    if base in _SPOKEN:
        return _SPOKEN[base]
    if op.kind == "transfer-out":
        return "copying a tensor to the CPU"
    if op.kind == "transfer-in":
        return "copying a tensor from the CPU"
    return f"`{base.removeprefix('_')}`"


def milliseconds(value: float) -> str:
    """``0.421`` is "0.421 ms", ``0.0052`` "5.2 us"; three significant digits, in the units of the rest of a report."""
    if 0 < value < 0.1:
        return f"{value * 1000:.3g} us"
    return f"{value:.3g} ms" if value < 999.5 else f"{value / 1000:.3g} s"


def times(per_call: float) -> str:
    """``1`` is "once per call", ``2.5`` is "2.5 times per call"."""
    return "once per call" if per_call == 1 else f"{per_call:.3g} times per call"


def traced_calls(number: int) -> str:
    """ "1 traced call", "2 traced calls"."""
    return "1 traced call" if number == 1 else f"{number} traced calls"


def ended(segments: int) -> str:
    """The cost to a stream of an operator that runs as written, behind a message; empty where that is nothing."""
    if not segments:
        return ""
    return f"; {segments:,} group{'s of launches end' if segments > 1 else ' of launches ends'} there"


def shape_text(shape: Sequence[int]) -> str:
    return "[" + ", ".join(str(size) for size in shape) + "]"


def library(user: Position | None, inner: Position | None) -> str | None:
    """The package whose code, called from the person's line, is the cause: there is nothing to change in that line.

    None for the person's own code, and for functions of torch itself, which the person's line asked for.
    """
    if inner is None or (user is not None and inner.file == user.file):
        return None
    package = _inside_packages(inner.file).split("/")[0].removesuffix(".py")
    return None if package in ("", "torch") or _inside_packages(inner.file) == inner.file else package


def in_library(user: Position | None, inner: Position | None) -> tuple[tuple[str, str], ...]:
    """For a finding's evidence: the place in a library's code, nothing in the person's own."""
    return (("in_library", str(inner)),) if library(user, inner) and inner else ()


def _inside_packages(file: str) -> str:
    """A path from the package on, where the file is an installed one."""
    file = file.replace("\\", "/")
    for root in ("/site-packages/", "/dist-packages/"):
        _, found, rest = file.partition(root)
        file = rest if found else file
    return file


def via(user: Position | None, inner: Position | None) -> str:
    """Where in a library the person's line ends up; empty where the line itself is the innermost frame."""
    if user is None or inner is None or inner.file == user.file:
        return ""
    return f" (in {inner.function}, {_inside_packages(inner.file)}, line {inner.line})"


def waits(evidence: CellEvidence) -> str:
    """Without a CUDA device nothing waited: the trace only shows where it would."""
    return "the CPU waits" if evidence.cuda else "the CPU would wait for a GPU"
