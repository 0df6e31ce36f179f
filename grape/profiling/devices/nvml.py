"""NVML through `pynvml`: the memory of a whole device. Absent NVML is an answer, not an error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import ModuleType

import torch

_lock = threading.Lock()
_library: ModuleType | None = None
_tried = False


def nvml() -> ModuleType | None:
    """The initialized `pynvml` module, or None where it or the driver's library is missing.

    Initialized once and left so until the process ends, for initializing takes milliseconds.
    """
    global _library, _tried
    with _lock:
        if not _tried:
            _tried = True
            try:
                import pynvml

                pynvml.nvmlInit()
                _library = pynvml
            except Exception:  # ImportError, or one of NVML's many errors
                _library = None
        return _library


def device_handle(device: torch.device) -> object:
    """NVML's handle of a CUDA device, or None.

    NVML numbers devices in its own order and ignores CUDA_VISIBLE_DEVICES, so that the device is looked up by the UUID
    or PCI address that CUDA itself reports. CUDA must be initialized already.
    """
    library = nvml()
    if library is None or device.type != "cuda" or not torch.cuda.is_initialized():
        return None
    try:
        properties = torch.cuda.get_device_properties(device)
    except Exception:
        return None
    for find, name in _addresses(library, properties):
        try:
            return find(name)
        except Exception:
            continue
    return None


def _addresses(library: ModuleType, properties: object) -> Iterator[tuple[Callable[[str], object], str]]:
    uuid = getattr(properties, "uuid", None)
    if uuid is not None:
        text = str(uuid)
        names = (text,) if text.startswith(("GPU-", "MIG-")) else (f"GPU-{text}", f"MIG-{text}")
        for name in names:
            yield library.nvmlDeviceGetHandleByUUID, name
    bus = getattr(properties, "pci_bus_id", None)
    if bus is not None:
        domain, slot = getattr(properties, "pci_domain_id", 0), getattr(properties, "pci_device_id", 0)
        yield library.nvmlDeviceGetHandleByPciBusId, f"{domain:08x}:{bus:02x}:{slot:02x}.0"


def used_bytes(handle: object) -> int | None:
    """Bytes in use on the device, by all processes; None where NVML does not say."""
    library = nvml()
    if library is None:
        return None
    try:
        return int(library.nvmlDeviceGetMemoryInfo(handle).used)
    except Exception:
        return None
