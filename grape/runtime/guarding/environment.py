"""The modes of the interpreter that change what an operator does. They are part of every guard key."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence

import torch
import torch.library
from torch.autograd import forward_ad
from torch.backends import mha as _mha
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from ..state.hooks import HOOKS_OF_ALL_MODULES


def _readers(*names: str) -> tuple[Callable[[], object], ...]:
    """The functions of torch that read these settings, of those that this version has."""
    return tuple(getattr(torch._C, name) for name in names if hasattr(torch._C, name))


_SETTINGS = _readers(
    "_get_cublas_allow_tf32",
    "_get_cublas_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_bf16_reduced_precision_reduction",
    "_get_cublas_allow_fp16_accumulation",
    "_get_cudnn_enabled",
    "_get_cudnn_allow_tf32",
    "_get_cudnn_benchmark",
    "_get_cudnn_deterministic",
    "_get_cudnn_sdp_enabled",
    "_get_flash_sdp_enabled",
    "_get_mem_efficient_sdp_enabled",
    "_get_math_sdp_enabled",
    "_get_math_sdp_allow_fp16_bf16_reduction",
    "_get_overrideable_sdp_enabled",
    "_get_blas_preferred_backend",
    "_get_linalg_preferred_backend",
    "_get_sm_carveout_experimental",
    "_get_fa3_sdp_enabled",
    "_get_cudnn_depthwise_kernel",
    "_get_cublaslt_prefer_grouped_gemm",
    "_cuda_get_cudnn_benchmark_limit",
    "_cuda_tunableop_is_enabled",
)
"""Settings that choose kernels on CUDA."""
_sdp_priorities: Callable[[], Iterable[object]] = getattr(torch._C, "_get_sdp_priority_order", tuple)
_SETTINGS_OF_HOST = _readers(
    "_get_mkldnn_enabled",
    "_get_mkldnn_deterministic",
    "_get_onednn_allow_tf32",
    "_get_nnpack_enabled",
    "_get_cpu_allow_fp16_reduced_precision_reduction",
    "_get_qengine",
    "get_num_threads",
)
"""Settings that choose kernels, and how these share their work, on the CPU."""
_COMMON = _readers(
    "_get_deterministic_algorithms",
    "_get_deterministic_algorithms_warn_only",
    "_get_deterministic_fill_uninitialized_memory",
)
_disabled_hooks: Callable[[], object] = getattr(
    torch._C._autograd, "_saved_tensors_hooks_get_disabled_error_message", lambda: None
)
_matmul_precision: Callable[[], object] = getattr(torch._C, "_get_float32_matmul_precision", lambda: None)
_fp32_precision: Callable[[str, str], object] = getattr(torch._C, "_get_fp32_precision_getter", lambda *_: None)
"""The setting that replaces `allow_tf32` and the one above, by backend and operator."""
_saved_tensor_hooks: Callable[[bool], object] = torch._C._autograd._top_saved_tensors_default_hooks


def environment(device: torch.device, own_modes: int = 0) -> tuple[object, ...]:
    """Grad and inference mode, autocast with its dtype, default dtype, determinism, precision, stream, whatever else
    chooses kernels; what watches autograd (search for anomalies, hooks on saved tensors) or modules (hooks on
    all of them).

    `own_modes` of the dispatch modes on the stack are Grape's.
    """
    readers = _readers_for(device.type, device.index or 0)
    modes = *quick_modes(device), torch._C._len_torch_dispatch_stack() - own_modes
    try:
        return *modes, *[read() for read in readers]
    except RuntimeError:
        return *modes, *map(_setting, readers)


@functools.cache
def _readers_for(kind: str, index: int) -> tuple[Callable[[], object], ...]:
    """The functions that tell the modes that matter on a device; the last one tells the stream, not with index -1."""
    precision = "mkldnn" if kind == "cpu" else kind
    common: tuple[Callable[[], object], ...] = (
        torch.get_default_dtype,
        *_COMMON,
        _disabled_hooks,
        _takes_fast_paths,
        _matmul_precision,
        *[functools.partial(_fp32_precision, precision, name) for name in ("matmul", "conv", "rnn")],
        _finds_anomalies,
        _has_hooks_on_saved_tensors,
        _has_hooks_of_all_modules,
        _raises_warnings,
        _default_device,
        _kernels_in_python,
    )
    if kind != "cuda":
        return *common, *_SETTINGS_OF_HOST
    if index < 0:
        return *common, *_SETTINGS, _sdp_order
    stream: Callable[[], object] = functools.partial(torch._C._cuda_getCurrentRawStream, index)
    return *common, *_SETTINGS, _sdp_order, stream


def settings() -> dict[str, object]:
    """What the process is set to, for every device. A call must leave it as it was: a replay would."""
    found: dict[str, object] = {}
    for kind in ("cpu", "cuda"):
        found |= dict(zip(_MODES, quick_modes(torch.device(kind)), strict=True))
        found |= {f"{name} of {kind}": found.pop(name) for name in _MODES if "autocast" in name}
        for read in _readers_for(kind, -1):
            if read is not _default_device:  # which issues an operator
                found[_named(read)] = _setting(read)
    return {**found, "default device": torch.utils._device.CURRENT_DEVICE}


def _named(read: Callable[[], object]) -> str:
    if isinstance(read, functools.partial):
        return f"fp32_precision of {' '.join(read.args)}"
    name: str = getattr(read, "__name__", "")
    return name.removeprefix("_").removeprefix("cuda_").removeprefix("get_")


def _sdp_order() -> object:
    return tuple(_sdp_priorities())


def _takes_fast_paths() -> object:
    return _mha._is_fastpath_enabled


def _finds_anomalies() -> bool:
    return torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()


def _has_hooks_on_saved_tensors() -> bool:
    return _saved_tensor_hooks(True) is not None


def _has_hooks_of_all_modules() -> bool:
    return any(HOOKS_OF_ALL_MODULES)


def _default_device() -> object:
    """That of a function mode; with how many there are."""
    count = torch._C._len_torch_function_stack()
    return count and (count, torch.get_default_device())


_filters: tuple[Sequence[object], bool] = [], False
"""The filters of warnings as they were met last, and whether one of them raises."""


def _raises_warnings() -> bool:
    """True where code that warns may end there."""
    global _filters
    met, raises = _filters
    if warnings.filters != met:
        raises = any(entry[0] == "error" for entry in warnings.filters)
        _filters = list(warnings.filters), raises
    return raises


_registered: Collection[str] = getattr(torch.library, "_impls", ())
_replaced: tuple[int, int] = 0, 0
"""How many kernels libraries in Python had registered as they were met last, and a number for those of torch's own
operators among them."""


def _kernels_in_python() -> int:
    """Another number where a library in Python replaces a kernel of torch's own operators, or takes that back."""
    global _replaced
    count, number = _replaced
    if len(_registered) != count:
        own = frozenset(name for name in _registered if name.startswith("aten/") and not name.endswith("/Meta"))
        _replaced = len(_registered), hash(own)
        number = _replaced[1]
    return number


def _setting(read: Callable[[], object]) -> object:
    """A setting of the older interface, which raises once the person has used the newer one (`fp32_precision`)."""
    try:
        return read()
    except RuntimeError:
        return None


_MODES = ("is_grad_enabled", "is_inference_mode_enabled", "autocast", "autocast dtype", "autocast cache")


def quick_modes(device: torch.device) -> tuple[object, ...]:
    """The beginning of `environment`: the modes that a program changes often."""
    kind = device.type
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled(kind),
        torch.get_autocast_dtype(kind),  # also where it is off: the code may turn it on
        torch.is_autocast_cache_enabled(),
    )


def foreign_modes(own_modes: int = 0) -> str | None:
    """The kind of a mode of the person's that watches or changes operators, which a replay would pass by.

    `torch.set_default_device` is a mode as well, and part of the environment.
    """
    if torch._C._len_torch_dispatch_stack() > own_modes:
        return "TorchDispatchMode"
    if _has_hooks_on_saved_tensors():
        return "hook on saved tensors"
    if _finds_anomalies():
        return "search for anomalies"
    if _has_hooks_of_all_modules():
        return "hook on all modules"
    return "TorchFunctionMode" if foreign_function_mode() else None


def foreign_function_mode() -> bool:
    """True where a function mode of the person's is there, which would see what Grape reads of tensors."""
    modes = (type(mode) for mode in _get_current_function_mode_stack())
    return any(kind is not DeviceContext and not kind.__module__.startswith("grape.") for kind in modes)


def is_transformed() -> bool:
    """In `torch.func` transforms, compilers, traces of TorchScript and forward-mode AD a tensor is more than memory."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch.compiler.is_compiling()
        or _traced_by_script() is not None
        or forward_ad._current_level >= 0
    )


_traced_by_script: Callable[[], object] = torch._C._get_tracing_state
is_batched: Callable[[torch.Tensor], bool] = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda _: False)
"""True if a tensor stands for many: `torch.autograd.grad(..., is_grads_batched=True)` goes through a backward once."""
