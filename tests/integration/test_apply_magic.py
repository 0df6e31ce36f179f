"""``%grape diff``, ``apply`` and ``undo`` of source, in a real kernel and in a plain shell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

pytestmark = pytest.mark.usefixtures("forked_kernels")

SETUP = """\
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh()).eval()
xs = [torch.randn(3, 4) for _ in range(12)]
def rows(h):
    sums = []
    for row in h:
        sums.append(torch.tanh(row).sum().item())
    return sum(sums)
"""
CELL = """\
%%grape --no-widget
losses = []
with torch.no_grad():
    kept = []
    for x in xs:
        h = model(x)
        losses.append(rows(h))
        kept.append(h.sum().item())
        print(round(h.max().item(), 2))
"""
FIXED = CELL.replace("h.sum().item())", "h.sum().detach().clone())").rstrip() + (
    "\n    kept[:] = [value.item() for value in kept]"
)


FIXED_SETUP = SETUP.replace(".sum().item())", ".sum().detach().clone())").replace(
    "    return", "    sums[:] = [value.item() for value in sums]\n    return"
)


@dataclass
class Kernel:
    client: Any

    def run(self, source: str) -> tuple[str, list[dict[str, Any]], str | None]:
        """What a cell printed, the payloads for the front end, and its error."""
        request = self.client.execute(source)
        printed: list[str] = []
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                printed.append(content["text"])
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                break
        while (message := self.client.get_shell_msg(timeout=60))["parent_header"].get("msg_id") != request:
            pass  # a kernel that started slowly answers more than once that it is there
        reply = message["content"]
        error = f"{reply['ename']}: {reply['evalue']}" if reply["status"] == "error" else None
        return "".join(printed), reply.get("payload", []), error


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        yield Kernel(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_fix_is_read_taken_run_and_given_back(kernel: Kernel) -> None:
    kernel.run("%load_ext grape")
    kernel.run(SETUP)
    printed, _, error = kernel.run(CELL)
    assert error is None
    values, _, _ = kernel.run("print([v.hex() for v in kept], losses)")

    shown, _, error = kernel.run("%grape diff")
    assert error is None
    assert "fix 2: GR101 host-sync, In[3], line 8 (outputs identical when both ran on copies)" in shown
    assert (
        "no automatic fix for GR101 host-sync, In[3], line 9: what is shown at each step would appear only after"
        in shown
    )
    assert "fix 1: GR101 host-sync, In[2], line 7 (outputs identical when both ran on copies)" in shown

    said, payload, error = kernel.run("%grape apply 2")
    assert error is None and "this cell holds the source now; run it in the place of In[3]" in said
    (replaced,) = payload
    assert (replaced["source"], replaced["replace"], replaced["text"]) == ("set_next_input", True, FIXED)
    # Graphs are numbered first.
    status = kernel.run("%grape status")[0]
    number = re.search(r"^ +(\d+) source of In\[3\]: fix 2$", status, re.MULTILINE)
    assert number is not None and status.index("source of In[3]") < status.index("found in the last run")
    assert kernel.run("%grape apply 2")[2] == "UsageError: %grape: fix 2 is applied already"

    _, payload, error = kernel.run("%grape apply 1")
    assert error is None and payload[0]["text"] == FIXED_SETUP.rstrip()

    undone, payload, error = kernel.run(f"%grape undo {number[1]}")
    assert error is None and undone.startswith("undone: source of In[3]: fix 2")
    assert payload[0]["text"] == CELL.rstrip()

    again, _, error = kernel.run(FIXED)
    assert error is None and again == printed
    assert kernel.run("print([v.hex() for v in kept], losses)")[0] == values


def test_numbers_that_there_are_not(kernel: Kernel) -> None:
    kernel.run("%load_ext grape")
    kernel.run("%grape reset")
    assert (
        kernel.run("%grape apply")[2]
        == "UsageError: %grape: there is no report yet; run a cell with %%grape on its first line"
    )
    kernel.run("%%grape\nx = 1")
    assert kernel.run("%grape diff")[0] == "no fix: no finding of the last report has a rewrite of source\n"
    for line, said in (
        ("%grape apply 7", "%grape: no fix 7 in the last report (there is none); see %grape diff"),
        ("%grape diff one", "%grape diff takes a number from %grape diff, not 'one'"),
        ("%grape apply", "%grape: the last report has no fix; see %grape diff"),
    ):
        assert kernel.run(line)[2] == f"UsageError: {said}"
