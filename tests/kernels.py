"""Kernels that have imported torch and Grape already, for tests that are not about what happens when they do."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.processes import Program


class ForkedKernel(Program):
    """As much of a `subprocess.Popen` as jupyter_client asks of a kernel's process."""

    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def launch(command: list[str], *, env: dict[str, str], cwd: str | None = None, **_: object) -> ForkedKernel:
    """In the place of `launch_kernel` of jupyter_client's `local_provisioner`."""
    words = [word for word in command[1:] if not word.startswith("-X")]
    made = ForkedKernel(*words, cwd=Path(cwd or "."), environment=env | {"JPY_PARENT_PID": str(os.getpid())})
    until = time.monotonic() + 60
    while not made.is_itself():  # signals go to its process group
        assert made.poll() is None and time.monotonic() < until, "the kernel did not start"
        time.sleep(0.002)
    return made
