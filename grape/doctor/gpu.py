"""The GPU, its driver, and the libraries that speak to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .check import Check, dotted, first_line, installed

_CONDITIONAL_DRIVER = (12, 4)
_ALL_DRIVER = (12, 8)
_ON_CPU = "cells run and are advised on, graphs are rehearsed on the CPU, nothing gets faster"
_ON_A_GPU = "only used with an NVIDIA GPU"


def _available() -> bool:
    import torch

    return torch.cuda.is_available()


def torch_cuda() -> Iterator[Check]:
    """True where torch was built for the GPU that the driver shows."""
    import torch

    build = torch.version.cuda
    hidden = not build and bool(_driver_devices())
    yield Check(
        name="torch's CUDA",
        ok=False if hidden else True if build else None,
        found=f"CUDA {build}" if build else "built without CUDA",
        needs="a CUDA build of torch: this machine has an NVIDIA GPU" if hidden else "",
        effect=_ON_CPU if hidden else _ON_A_GPU,
    )


def devices() -> Iterator[Check]:
    import torch

    if not _available():
        seen = _driver_devices() if torch.version.cuda else 0
        yield Check(
            name="GPU",
            ok=False if seen else None,
            found=f"the driver has {seen}, torch cannot use any" if seen else "no CUDA device",
            needs="a driver as new as torch's CUDA, and CUDA_VISIBLE_DEVICES not to hide the GPU" if seen else "",
            effect=_ON_CPU,
        )
        return
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        size = f"{found.total_memory / 2**30:.0f} GiB"
        yield Check(name=f"GPU {index}", ok=True, found=f"{found.name}, {size}, compute {found.major}.{found.minor}")


def driver() -> Iterator[Check]:
    level, release = _driver_level(), _ask_driver("nvmlSystemGetDriverVersion")
    words = [*([release] if release else []), *([f"supports CUDA {dotted(level)}"] if level else [])]
    found = ", ".join(words) or "not found"
    if not _available():
        yield Check(name="NVIDIA driver", ok=None, found=found, effect=_ON_A_GPU)
        return
    yield Check(
        name="NVIDIA driver",
        ok=None if level is None else level >= _CONDITIONAL_DRIVER,
        found=found,
        needs=f"a driver for CUDA {dotted(_CONDITIONAL_DRIVER)} or newer, {dotted(_ALL_DRIVER)} for all",
        effect="graphs work, control flow cannot move into them",
    )


def bindings() -> Iterator[Check]:
    try:
        from cuda.bindings import driver, runtime  # noqa: F401
    except Exception as error:
        wanted = _available()
        yield Check(
            name="cuda.bindings",
            ok=False if wanted else None,
            found=first_line(error),
            needs="pip install 'cuda-bindings>=12.8'" if wanted else "",
            effect="graphs work, their nodes are not counted, control flow cannot move into them"
            if wanted
            else _ON_A_GPU,
        )
        return
    yield Check(name="cuda.bindings", ok=True, found=installed("cuda-bindings") or "found")


def conditional_nodes() -> Iterator[Check]:
    level = _driver_level() if _available() else None
    if level is None:
        yield Check(name="conditional nodes", ok=None, found="no driver to ask", effect=_ON_A_GPU)
        return
    some, every = level >= _CONDITIONAL_DRIVER, level >= _ALL_DRIVER
    yield Check(
        name="conditional nodes",
        ok=True if every else None if some else False,
        found="IF, WHILE, ELSE, SWITCH" if every else "IF, WHILE" if some else f"none in CUDA {dotted(level)}",
        needs=f"a driver for CUDA {dotted(_ALL_DRIVER)} or newer",
        effect="data-dependent branches and loops that need more stay eager",
    )


def control_flow_costs() -> Iterator[Check]:
    """The cost of a conditional node here, and from how many kernels in a body on it pays."""
    name = "control flow costs"
    if not _available():
        yield Check(name=name, ok=None, found="no CUDA device", effect=_ON_A_GPU)
        return
    import torch

    from ..runtime.backends.cuda.backend import CudaBackend
    from ..runtime.predication.costs.calibration import node_costs
    from ..runtime.predication.costs.costs import H200, crossover

    backend = CudaBackend(torch.device("cuda", torch.cuda.current_device()), conditional_bodies=True)
    costs = node_costs(backend)
    if costs is H200:
        yield Check(name=name, ok=None, found=f"could not be measured; those of {H200.source} are used")
        return
    kernels = crossover(costs)
    yield Check(
        name=name,
        ok=True,
        found=(
            f"IF node {costs.if_taken_ns / 1e3:.1f} us taken, {costs.if_skipped_ns / 1e3:.1f} us not, "
            f"kernel {costs.kernel_ns / 1e3:.1f} us, a kept write {costs.keep_ns / 1e3:.1f} us: a node pays "
            + ("nowhere" if kernels is None else f"from {kernels} kernels per body on")
        ),
    )


def nvml() -> Iterator[Check]:
    from ..profiling.devices.nvml import device_handle, used_bytes
    from ..profiling.devices.nvml import nvml as library

    effect = "memory charts show torch's allocator only"
    if library() is None:
        version = installed("nvidia-ml-py")
        yield Check(
            name="NVML",
            ok=None if version else False,
            found=f"pynvml {version}, no NVIDIA driver library" if version else "pynvml is not installed",
            needs="" if version else "pip install nvidia-ml-py",
            effect=effect if _available() else _ON_A_GPU,
        )
        return
    used = None
    if _available():
        import torch

        torch.cuda.init()
        handle = device_handle(torch.device("cuda", torch.cuda.current_device()))
        used = None if handle is None else used_bytes(handle)
    found = "does not tell this GPU's memory" if used is None else f"{used / 2**30:.1f} GiB in use on this GPU"
    yield Check(name="NVML", ok=None if used is None else True, found=found, effect=effect)


def _ask_driver(name: str) -> Any:
    """What this function of NVML's gives; None without a driver, and where it fails."""
    from ..profiling.devices.nvml import nvml as library

    pynvml = library()
    try:
        return None if pynvml is None else getattr(pynvml, name)()
    except Exception:
        return None


def _driver_devices() -> int:
    """How many GPUs the driver has, whatever torch can use."""
    return int(_ask_driver("nvmlDeviceGetCount") or 0)


def _driver_level() -> tuple[int, int] | None:
    """The newest CUDA version that the driver supports; None without a driver."""
    level = _ask_driver("nvmlSystemGetCudaDriverVersion_v2")
    if level is None:  # torch knows as well
        import torch

        ask = getattr(torch._C, "_cuda_getDriverVersion", None)
        level = ask() if ask is not None else 0
    level = int(level)
    return (level // 1000, level % 1000 // 10) if level > 0 else None  # of 12080 (12, 8)
