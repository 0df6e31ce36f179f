"""Cells as a person runs them, what they print and what is reported of them."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import grape
from grape.streams import shared


class Notebook:
    """Its first cell is `setup`."""

    def __init__(self, shell: InteractiveShell, setup: str) -> None:
        self.shell = shell
        self.said = ""
        self.run(setup).raise_error()

    def run(self, source: str) -> Any:
        with capture_output() as captured:
            result = self.shell.run_cell(source, store_history=True)
        shown = [output.data.get("text/plain", "") for output in captured.outputs]
        self.said = "".join([captured.stdout, captured.stderr, *shown])
        return result

    def under_grape(self, source: str) -> dict[str, Any]:
        """The report of a cell that has to end well."""
        before = grape.last
        self.run(source).raise_error()
        assert grape.last is not None and grape.last is not before
        return grape.last.to_dict()

    def __getitem__(self, name: str) -> Any:
        return self.shell.user_ns[name]


def has_kernel() -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key("aten::add.Tensor", "Fake"))


def is_on() -> bool:
    return bool(torch._C._dispatch_tls_is_dispatch_key_included("Fake"))  # type: ignore[attr-defined]


def nothing_left() -> bool:
    """Nothing of operator streams."""
    start = threading.Thread._bootstrap_inner.__qualname__  # type: ignore[attr-defined]
    return not is_on() and not has_kernel() and shared.stream is None and start == "Thread._bootstrap_inner"
