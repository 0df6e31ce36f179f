"""cuBLAS before a capture: it allocates a workspace for each stream that it meets, and graphs remember its address.

torch gives the workspaces back when asked to (`torch._C._cuda_clearCublasWorkspaces`, which its compiler calls). In the
allocator's common pool that memory would go to eager code, while graphs still write there. So the workspaces of streams
on which Grape captures lie in a pool of their own, which lives as long as the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_workspaces: dict[torch.device, torch.cuda.MemPool] = {}


KINDS = (torch.float32, torch.float16, torch.bfloat16)


def warm_products(
    device: torch.device,
    stream: torch.cuda.Stream,
    *,
    autograd: bool = False,
    kinds: tuple[torch.dtype, ...] = KINDS,
) -> None:
    """Have cuBLAS do products of each kind on `stream`, and wait for it. Not inside a capture.

    With `autograd` also in the thread that runs `backward`, which has a cuBLAS handle of its own. One kind makes the
    handle and its workspaces; the kernels of each other kind take a tenth of a second to load.
    """
    with (
        torch.cuda.device(device),
        torch.cuda.stream(stream),
        _in_workspaces(device),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast("cuda", enabled=False),
    ):
        for dtype in kinds:
            square = torch.zeros(64, 64, device=device, dtype=dtype)
            torch.addmm(square[0], square, square)
            torch.bmm(square[None], square[None])
            if autograd:
                with torch.enable_grad():
                    leaf = square.clone().requires_grad_()
                    torch.addmm(leaf[0], leaf, leaf).sum().backward()
        stream.synchronize()


def make_handle(device: torch.device, stream: torch.cuda.Stream) -> None:
    """Have cuBLAS make this thread's handle, with its workspace on `stream`, but load no kernels: in a millisecond."""
    with torch.cuda.device(device), torch.cuda.stream(stream), _in_workspaces(device):
        torch.cuda.current_blas_handle()


@contextmanager
def _in_workspaces(device: torch.device) -> Iterator[None]:
    """Inside, what is allocated on the current stream, from any thread, lies in the pool of workspaces."""
    pool = _workspaces.get(device)
    if pool is None:
        pool = _workspaces[device] = torch.cuda.MemPool()
    allocator: Any = torch._C
    allocator._cuda_beginAllocateCurrentStreamToPool(device.index, pool.id)
    try:
        yield
    finally:
        allocator._cuda_endAllocateToPool(device.index, pool.id)
        allocator._cuda_releasePool(device.index, pool.id)
