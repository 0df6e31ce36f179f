"""Extensions whose functions may launch kernels on pointers that they take from tensors in C++, without an operator.

They would read results before those are issued. An extension stays loaded, so beside one nothing is deferred any more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from ..originals import environ

_NAMED = 3  # at most, in a reason
_BY_NAME = (
    "tvm_ffi",  # takes pointers through `Tensor.__dlpack_c_exchange_api__`
    *("cupy", "numba.cuda", "pycuda", "warp"),  # may have arrays over a tensor's memory from before the stream
)
"""Modules that link no torch."""
_PLAIN = (str, bytes, int, float, complex, tuple, type(None))


def in_the_way(extension: ModuleType) -> str:
    """Why nothing may be deferred beside the extensions of this process; empty where there is none. `extension` is
    Grape's own.
    """
    found = sorted(_name(file, modules) for file, modules in _beside(extension) if _has_functions(modules))
    found += [name for name in _BY_NAME if name in sys.modules]
    if not found:
        return ""
    named = ", ".join([*found[:_NAMED], *([f"{len(found) - _NAMED} more"] if len(found) > _NAMED else [])])
    return f"functions of C++ extensions may read results before they are issued: {named}"


def watch(loaded: Callable[[], None]) -> Callable[[], None]:
    """Have `loaded` called behind each module of Python that is loaded from a shared object; the result undoes it."""
    kind: Any = ExtensionFileLoader
    plain = kind.exec_module

    def exec_module(self: ExtensionFileLoader, module: ModuleType) -> None:
        plain(self, module)
        loaded()

    kind.exec_module = exec_module

    def undo() -> None:
        kind.exec_module = plain

    return undo


_known: tuple[int, list[tuple[str, list[ModuleType]]]] = (-1, [])
"""How many shared objects had been loaded, and the extensions among them, by file, with their modules."""


def _beside(extension: ModuleType) -> list[tuple[str, list[ModuleType]]]:
    global _known
    loads = extension.loads()
    if loads != _known[0]:
        own = os.path.realpath(extension.__file__ or "")
        files = [file for file in map(os.path.realpath, extension.modules()) if file != own and not _of_torch(file)]
        _known = loads, [(file, _modules_from(file)) for file in files]
    return _known[1]


def _of_torch(file: str) -> bool:
    """Torch's own, and what Inductor made, which is called by what `compiled.py` watches."""
    import torch

    package = Path(torch.__file__).parent
    inductor = environ.get("TORCHINDUCTOR_CACHE_DIR")  # set by Inductor where the person does not
    folders = [package, package.parent / "functorch", *([Path(inductor)] if inductor else [])]
    return any(Path(file).is_relative_to(os.path.realpath(folder)) for folder in folders)


def _modules_from(file: str) -> list[ModuleType]:
    """None where the module was never in `sys.modules`, as those that `torch.utils.cpp_extension` compiles."""
    name, found = os.path.basename(file), []
    for module in list(sys.modules.values()):
        path = getattr(module, "__dict__", {}).get("__file__")  # past a `__getattr__` of the module's
        if isinstance(path, str) and os.path.basename(path) == name and os.path.realpath(path) == file:
            found.append(module)
    return found


def _has_functions(modules: list[ModuleType]) -> bool:
    """False for a module that is there to register operators: it holds nothing but plain data."""
    return not modules or any(
        not isinstance(value, _PLAIN)
        for module in modules
        for name, value in vars(module).items()
        if not (name.startswith("__") and name.endswith("__"))
    )


def _name(file: str, modules: list[ModuleType]) -> str:
    return modules[0].__name__ if modules else os.path.basename(file).partition(".")[0]
