"""The modes of the interpreter that change what an operator does. They are part of every guard key."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

__all__ = ["environment", "foreign_modes", "is_transformed", "quick_modes"]

_SETTINGS = tuple(
    getattr(torch._C, name)
    for name in (
        "_get_cublas_allow_tf32",
        "_get_cublas_allow_fp16_reduced_precision_reduction",
        "_get_cublas_allow_bf16_reduced_precision_reduction",
        "_get_cudnn_enabled",
        "_get_cudnn_allow_tf32",
        "_get_cudnn_benchmark",
        "_get_cudnn_deterministic",
        "_get_cudnn_sdp_enabled",
        "_get_flash_sdp_enabled",
        "_get_mem_efficient_sdp_enabled",
        "_get_math_sdp_enabled",
    )
    if hasattr(torch._C, name)
)
"""What chooses kernels on CUDA."""


def environment(device: torch.device, own_modes: int = 0) -> tuple[Any, ...]:
    """Grad and inference mode, autocast with its dtype, default dtype, determinism, precision, stream.

    `own_modes` of the dispatch modes on the stack are Grape's.
    """
    kind = device.type
    common = (
        *quick_modes(device),
        torch.get_default_dtype(),
        torch._C._get_deterministic_algorithms(),
        torch._C._get_float32_matmul_precision() if hasattr(torch._C, "_get_float32_matmul_precision") else None,
        torch._C._len_torch_dispatch_stack() - own_modes,
        torch._C._len_torch_function_stack() and torch.get_default_device(),
    )
    if kind != "cuda":
        return common
    return (
        *common,
        *[setting() for setting in _SETTINGS],
        torch._C._cuda_getCurrentRawStream(device.index or 0),
    )


def quick_modes(device: torch.device) -> tuple[Any, ...]:
    """The first three of `environment`: those that a program changes often."""
    kind = device.type
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind),
    )


def foreign_modes(own_modes: int = 0) -> str | None:
    """The kind of a mode of the person's that watches or changes operators, which a replay would pass by.

    `torch.set_default_device` is a mode as well, and part of the environment.
    """
    if torch._C._len_torch_dispatch_stack() > own_modes:
        return "TorchDispatchMode"
    modes = (type(mode) for mode in _get_current_function_mode_stack())
    if any(kind is not DeviceContext and not kind.__module__.startswith("grape.") for kind in modes):
        return "TorchFunctionMode"
    return None


def is_transformed() -> bool:
    """Inside `torch.func` transforms and compilers the arguments are no tensors with memory."""
    return torch._C._functorch.peek_interpreter_stack() is not None or torch.compiler.is_compiling()
