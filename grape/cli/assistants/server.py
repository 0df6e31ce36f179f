"""The tools of `grape mcp`, over standard input and output. The only room that knows the package `mcp`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from ... import __version__
from ...errors import GrapeError
from .work import Work

_INSTRUCTIONS = """\
Grape profiles PyTorch programs on NVIDIA GPUs and says in their own lines why the GPU waits for the CPU. profile runs a
script or a notebook; findings lists what was seen; propose shows a rewrite; prove runs both versions, compares their
results bit for bit and times them; apply writes it; undo takes it back. Prove before you apply. On a machine without a
GPU nothing gets faster; findings still hold."""

Report = Annotated[int, Field(description="the number that profile gave")]
Findings = Annotated[list[int], Field(description="numbers of findings that have a rewrite")]
_NONE: list[str] = []
_ALL: list[int] = []
Seconds = Annotated[float, Field(description="the most seconds one run may take", gt=0)]


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """An error of Grape's is for the assistant to read."""
    try:
        yield
    except (GrapeError, OSError) as error:
        raise ToolError(str(error)) from None


def make_server(folder: Path) -> MCPServer:
    """The server; files are named from `folder`, in which programs run."""
    work = Work(folder)
    server = MCPServer("grape", version=__version__, instructions=_INSTRUCTIONS, log_level="WARNING")

    def profile(
        path: Annotated[str, Field(description="a script (.py) or a notebook (.ipynb)")],
        arguments: Annotated[list[str], Field(description="of the script")] = _NONE,
        cells: Annotated[list[int], Field(description="of a notebook: the code cells to measure, from 1")] = _ALL,
        engine: Annotated[str | None, Field(description="auto, regions or streams; auto where none is named")] = None,
        timeout_s: Seconds = 600.0,
    ) -> dict[str, object]:
        """Run a script once, or a notebook from its first to its last cell, under Grape. Gives the number of the
        report, a verdict for each measured cell, times, regions, and how many findings and rewrites there are.
        """
        with _told():
            return work.profile(path, arguments=arguments, cells=cells, engine=engine, timeout_s=timeout_s)

    def findings(report: Report) -> dict[str, object]:
        """List what was found, the most important first: code, line, message, cost, and whether there is a rewrite."""
        with _told():
            return work.findings(report)

    def propose(report: Report, findings: Findings) -> dict[str, object]:
        """Show the rewrites of these findings together, as a unified difference. Nothing is written."""
        with _told():
            return work.propose(report, findings)

    def prove(
        report: Report,
        findings: Findings,
        repeats: Annotated[int, Field(description="timed runs of each version", ge=0, le=20)] = 3,
        timeout_s: Seconds = 600.0,
    ) -> dict[str, object]:
        """Run the program as it is and rewritten, without Grape, in processes of their own. Says whether values,
        standard output and random states have the same bits, and how much faster it is. Nothing is written.
        """
        with _told():
            return work.prove(report, findings, repeats=repeats, timeout_s=timeout_s)

    def apply(report: Report, findings: Findings) -> dict[str, object]:
        """Write these rewrites into the file, if it is as it was when it ran. Gives the number of the change."""
        with _told():
            return work.apply(report, findings)

    def undo(
        change: Annotated[
            int | None, Field(description="the number that apply gave; the last change where none")
        ] = None,
    ) -> dict[str, object]:
        """Give a file back what it held before a change, if nobody edited it since."""
        with _told():
            return work.undo(change)

    def explain(code: Annotated[str, Field(description="for example GR101")]) -> str:
        """The documentation page of a finding: what it means, what it costs, how to fix it."""
        from ...advisor import explain as page

        with _told():
            return page(code)

    for tool in (profile, findings, propose, prove, apply, undo, explain):
        server.add_tool(tool)
    return server


def serve() -> int:
    """Answer until the client goes."""
    server = make_server(Path.cwd())
    server.run("stdio")
    return 0
