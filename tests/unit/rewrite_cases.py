"""Findings and namespaces for the tests of rewrites."""

from __future__ import annotations

from typing import Any

import torch

from grape.model import Finding, Position

# The first optimizer of a process imports what wraps `torch.manual_seed`.
torch.optim.SGD([torch.zeros(1)], lr=0.1)

__all__ = ["finding", "outcome", "run"]


def finding(code: str, line: int, *, region: str | None = None, file: str = "In[1]", **evidence: Any) -> Finding:
    return Finding(
        code=code,
        severity="costly",
        message="what was seen",
        at=Position(file=file, line=line, function="<module>"),
        region=region,
        evidence=tuple(evidence.items()),
    )


def run(source: str, setup: str) -> dict[str, Any]:
    """The names that `setup` and `source` leave."""
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(setup, "<setup>", "exec"), namespace)
    exec(compile(source, "<cell>", "exec"), namespace)
    return namespace


def outcome(value: Any) -> Any:
    """What must be equal: types, shapes, dtypes and bits."""
    if isinstance(value, torch.Tensor):
        return ("tensor", tuple(value.shape), value.dtype, value.detach().cpu().contiguous().numpy().tobytes())
    if isinstance(value, float):
        return ("float", value.hex())
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [outcome(item) for item in value])
    if isinstance(value, dict):
        return ("dict", {key: outcome(item) for key, item in value.items()})
    return (type(value).__name__, value)
