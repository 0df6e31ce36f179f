"""The kernel of one notebook: executes its cells through nbclient, and asks it for reports in between."""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from ...errors import GrapeError, UsageError
from ...render.json_types import ReportJson
from .notebook import CodeCell

_STARTUP_S = 60
_WHY_DEAD = "often the machine's memory was full, or native code crashed"
_SIDE = "__import__('grape.cli.notebooks.kernel_side', fromlist=['prepare'])"


class KernelError(GrapeError):
    """The notebook's kernel is missing, cannot load Grape, died, or took too long."""

    exit_code = 3


class CellRaised(GrapeError):
    """A cell of the notebook raised. `traceback` is as the kernel formatted it, with ANSI colors."""

    def __init__(self, message: str, traceback: str) -> None:
        super().__init__(message)
        self.traceback = traceback


@dataclass(frozen=True, slots=True, kw_only=True)
class CellReport:
    """The report of one cell as it came back: `report` is its `to_dict()`, the others are renderings; `view` and
    `trace` only where they were asked for.
    """

    number: int
    report: ReportJson
    html: str
    text: str
    view: str | None = None
    trace: str | None = None
    has_timeline: bool = False


class NotebookKernel:
    """A running kernel and the notebook whose cells it executes; outputs go into the notebook's cells."""

    def __init__(self, client: NotebookClient, name: str, timeout_s: float | None) -> None:
        self._client = client
        self._name = name
        self._timeout_s = timeout_s

    def execute(self, cell: CodeCell, *, magic_line: str | None) -> None:
        """Run a cell, under `magic_line` where given; its source stays as it was.

        Raises `CellRaised` where the cell raised and is not tagged "raises-exception", `KernelError` where the
        kernel died or the time was up.
        """
        node = self._client.nb.cells[cell.index]
        source = node.source
        if magic_line is not None:
            node.source = f"{magic_line}\n{source}"
        try:
            self._client.execute_cell(node, cell.index)
        except CellTimeoutError:
            raise KernelError(f"cell {cell.number} ran longer than the --timeout of {self._timeout_s} s") from None
        except DeadKernelError:
            raise KernelError(f"the kernel died in cell {cell.number}; {_WHY_DEAD}") from None
        finally:
            node.source = source
        error = next((out for out in node.outputs if out.output_type == "error"), None)
        if error is not None and "raises-exception" not in node.metadata.get("tags", []):
            value = " ".join(error.evalue.split())
            message = f"{error.ename}: {value}" if value else error.ename
            raise CellRaised(message, "\n".join(error.traceback))

    def prepare(self) -> None:
        """Make the kernel ready for a cell under Grape. Raises `KernelError` where it has no Grape."""
        try:
            self._ask(f"{_SIDE}.prepare()")
        except _Answer as error:
            raise KernelError(
                f"kernel '{self._name}' cannot load Grape: {error}; install grape-jupyter in its environment"
            ) from None

    def collect(
        self, number: int, *, notebook: str, width: int, color: bool, extra: tuple[str, ...] = ()
    ) -> CellReport | None:
        """The report of the cell that just ran in the file `notebook`, `extra` of view and trace with it; None where it
        made none.
        """
        try:
            answer = json.loads(self._ask(f"{_SIDE}.collect({notebook!r}, {width!r}, {color!r}, {extra!r})"))
        except _Answer as error:
            raise KernelError(f"kernel '{self._name}' did not hand over the report of cell {number}: {error}") from None
        if answer is None:
            return None
        return CellReport(number=number, **answer)

    def _ask(self, expression: str) -> str:
        """The value of `expression` in the kernel, through a silent request that leaves no trace in its history."""
        channel: Any = self._client.kc
        request = channel.execute("", silent=True, store_history=False, user_expressions={"answer": expression})
        try:
            reply: Any = self._client.wait_for_reply(request)
        except DeadKernelError:
            raise KernelError(f"the kernel died between two cells; {_WHY_DEAD}") from None
        content: dict[str, Any] = reply["content"] if reply else {"status": "no reply"}
        if content["status"] != "ok":
            raise _Answer(content.get("evalue", content["status"]))
        answer = content["user_expressions"]["answer"]
        if answer["status"] != "ok":
            raise _Answer(f"{answer['ename']}: {' '.join(answer['evalue'].split())}")
        return str(ast.literal_eval(answer["data"]["text/plain"]))


class _Answer(Exception):
    """The kernel could not evaluate what it was asked."""


@contextmanager
def open_kernel(
    notebook: nbformat.NotebookNode, folder: Path, *, name: str | None, timeout_s: float | None
) -> Iterator[NotebookKernel]:
    """Start the kernel `name`, or the one that the notebook names, in `folder`; stop it at the end.

    Raises `UsageError` for a kernel of another language and `KernelError` for one that is missing or does not start.
    """
    kernel = name or notebook.metadata.get("kernelspec", {}).get("name") or "python3"
    _check_language(kernel)
    client = NotebookClient(
        notebook,
        kernel_name=kernel,
        resources={"metadata": {"path": str(folder)}},
        # Errors are judged here: with nbclient's own handling the kernel would drop the request for the report.
        allow_errors=True,
        record_timing=False,
        shell_timeout_interval=1,
        startup_timeout=_STARTUP_S,
        timeout_func=(lambda cell: timeout_s) if timeout_s else None,
        log=_quiet_log(),
    )
    manager: Any = client.create_kernel_manager()
    manager.log = client.log
    if manager.ipykernel:
        client.extra_arguments = ["--log-level=ERROR"]  # it warns of its transport on every start
    started = False
    try:
        with client.setup_kernel():
            started = True
            try:
                yield NotebookKernel(client, kernel, timeout_s)
                client.set_widgets_metadata()
            except BaseException:
                client.shutdown_kernel = "immediate"
                raise
    except (OSError, RuntimeError) as error:
        if started:
            raise
        raise KernelError(f"kernel '{kernel}' does not start: {' '.join(str(error).split())}") from None


def _check_language(kernel: str) -> None:
    specs = KernelSpecManager()
    try:
        language = specs.get_kernel_spec(kernel).language
    except (NoSuchKernel, ValueError, OSError):
        known = ", ".join(sorted(specs.find_kernel_specs())) or "none; pip install ipykernel"
        raise KernelError(f"kernel '{kernel}' is not installed; name another with --kernel: {known}") from None
    if language.lower() != "python":
        raise UsageError(f"kernel '{kernel}' runs {language}; Grape measures Python, name another with --kernel")


def _quiet_log() -> logging.Logger:
    """nbclient and jupyter_client log what they also raise; one line on stderr is enough."""
    log = logging.getLogger("grape.cli.notebooks.kernel")
    log.setLevel(logging.CRITICAL + 1)
    log.propagate = False
    return log
