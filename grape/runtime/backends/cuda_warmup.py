"""cuBLAS before a capture: it allocates a workspace for each stream that it meets."""

from __future__ import annotations

import torch

__all__ = ["warm_products"]


def warm_products(device: torch.device, stream: torch.cuda.Stream, *, autograd: bool = False) -> None:
    """Have cuBLAS do each kind of product on `stream`, and wait for it. Not inside a capture.

    With `autograd` also in the thread that runs `backward`, which has a cuBLAS handle of its own.
    """
    with torch.cuda.stream(stream), torch.no_grad(), torch.autocast("cuda", enabled=False):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            square = torch.zeros(64, 64, device=device, dtype=dtype)
            torch.addmm(square[0], square, square)
            torch.bmm(square[None], square[None])
            if autograd:
                with torch.enable_grad():
                    leaf = square.clone().requires_grad_()
                    torch.addmm(leaf[0], leaf, leaf).sum().backward()
    stream.synchronize()
