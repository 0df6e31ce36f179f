"""The kernels that set the condition of a conditional node: one thread each, for only device code can do that.

That of a loop also counts. `cells` are `LoopBound.cells`: a limit, whether it was reached, and a counter per loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import SupportsInt

import torch

from ..driver import Driver, DriverError

SOURCE = b"""
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);

extern "C" __global__ void grape_set_condition(unsigned long long handle, const unsigned char *condition) {
    cudaGraphSetConditional(handle, *condition ? 1u : 0u);
}

extern "C" __global__ void grape_steer_loop(unsigned long long handle, const unsigned char *condition,
                                            unsigned long long *cells, unsigned int number, unsigned int first) {
    unsigned long long runs = first ? 0 : cells[2 + number] + 1;
    unsigned int on = *condition ? 1u : 0u;
    cells[2 + number] = runs;
    if (on && runs >= cells[0]) {
        cells[1] = 1;
        on = 0;
    }
    cudaGraphSetConditional(handle, on);
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Functions of one module, which lives as long as the process: graphs use them."""

    module: object
    set_condition: object
    steer_loop: object


_kernels: dict[torch.device, Kernels] = {}


def kernels_of(driver: Driver, device: torch.device) -> Kernels:
    """Compiled once per device, which must be current. Raises `DriverError`, RuntimeError, ImportError."""
    if device not in _kernels:
        major, minor = torch.cuda.get_device_capability(device)
        error: DriverError | None = None
        # Where the device's runtime library is linked in by the driver depends on its version.
        for relocatable in (True, False):
            try:
                module = driver.call("cuModuleLoadData", compile_kernels(f"sm_{major}{minor}", relocatable=relocatable))
                _kernels[device] = Kernels(
                    module=module,
                    set_condition=driver.call("cuModuleGetFunction", module, b"grape_set_condition"),
                    steer_loop=driver.call("cuModuleGetFunction", module, b"grape_steer_loop"),
                )
                break
            except DriverError as failed:
                error = failed
        else:
            raise error or DriverError("cuModuleLoadData", 0)
    return _kernels[device]


def compile_kernels(architecture: str, *, relocatable: bool) -> bytes:
    """A CUBIN of the kernels. Needs no device. Raises RuntimeError, ImportError."""
    from cuda.bindings import nvrtc

    def check(error: SupportsInt) -> None:
        if int(error):
            raise RuntimeError(f"NVRTC could not compile the kernels of conditional nodes: {error}")

    error, program = nvrtc.nvrtcCreateProgram(SOURCE, b"grape_conditions.cu", 0, [], [])
    check(error)
    try:
        options = [f"--gpu-architecture={architecture}".encode(), *([b"-rdc=true"] if relocatable else [])]
        check(nvrtc.nvrtcCompileProgram(program, len(options), options)[0])
        error, nbytes = nvrtc.nvrtcGetCUBINSize(program)
        check(error)
        cubin = b" " * int(nbytes)  # the binding writes into it
        check(nvrtc.nvrtcGetCUBIN(program, cubin)[0])
        return cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)
