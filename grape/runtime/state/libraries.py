"""Lists what the person's code may name of libraries: what computes from its arguments, and nothing that reads or
changes the process, its files, its clocks or its other threads.
"""

from __future__ import annotations

import sys
import types

_PURE = frozenset(
    {
        *("__future__", "_abc", "_bisect", "_collections", "_collections_abc", "_functools", "_heapq", "_operator"),
        *("_statistics", "_struct", "_typing", "abc", "argparse", "bisect", "builtins", "cmath", "collections"),
        *("colorsys", "contextlib", "copy", "dataclasses", "enum", "fractions", "functools", "genericpath"),
        *("heapq", "itertools", "keyword", "math", "numbers", "operator", "re", "statistics", "string", "struct"),
        *("textwrap", "types", "typing", "typing_extensions"),
    }
)
"""Of the standard library: what reads nothing but its arguments."""
_INSTANCES = frozenset(
    {"argparse", "collections", "contextlib", "dataclasses", "enum", "fractions", "functools", "types"}
)
"""Modules of the standard library whose plain objects hold nothing but their attributes."""
_CONSTANT = frozenset({"byteorder", "float_info", "hexversion", "int_info", "maxsize", "platform", "version_info"})
"""Names that `sys` has and nobody changes."""
_SYS_BESIDE = frozenset({"path", "flags", "modules", "version", "exit"})
BUILTINS = frozenset(
    {
        *("__import__", "breakpoint", "compile", "eval", "exec", "globals", "hash", "id", "input", "locals"),
        *("memoryview", "open"),
    }
)
"""Builtin functions that read or change more than their arguments. (`print` is watched while it is called.)"""
INTROSPECTION = frozenset(
    {
        *("__annotations__", "__bases__", "__builtins__", "__closure__", "__code__", "__dataclass_fields__"),
        *("__defaults__", "__doc__", "__globals__", "__kwdefaults__", "__mro__", "__orig_bases__", "__parameters__"),
        *("__signature__", "__subclasses__", "__weakref__", "__wrapped__", "cr_frame", "f_back", "f_globals"),
        *("f_locals", "get_type_hints", "gi_frame", "tb_frame"),
    }
)
"""Attributes of functions, classes and frames that no guard compares, and what reads them."""
READS_ALL = frozenset(
    {
        *("__dict__", "__getattribute__", "__getstate__", "asdict", "astuple", "attrgetter", "copy", "deepcopy"),
        *("dir", "fields", "getattr", "getmembers", "hasattr", "methodcaller", "replace", "setattr", "vars"),
    }
)
"""Names by which code may read attributes that it does not mention."""
_NUMPY = frozenset(
    {
        *("ctypeslib", "frombuffer", "fromfile", "genfromtxt", "geterr", "geterrcall", "load", "loadtxt", "memmap"),
        *("open_memmap", "random", "save", "savetxt", "savez", "savez_compressed", "seterr", "tofile"),
    }
)
_TORCH = frozenset(
    {
        *("from_file", "get_allocator_backend", "get_num_interop_threads", "get_rng_state", "get_rng_state_all"),
        *("host_memory_stats", "initial_seed", "list_gpu_processes", "load", "max_memory_allocated"),
        *("max_memory_cached", "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_cached"),
        *("memory_reserved", "memory_snapshot", "memory_stats", "memory_summary", "memory_usage", "power_draw"),
        *("reset_peak_memory_stats", "save", "seed", "seed_all", "set_default_device", "set_default_dtype"),
        *("set_deterministic_debug_mode", "set_float32_matmul_precision", "set_flush_denormal", "set_num_threads"),
        *("set_printoptions", "set_warn_always", "temperature", "use_deterministic_algorithms", "utilization"),
    }
)
"""Functions with which torch tells of the process, or changes it."""


def why_not(module: types.ModuleType, mentioned: frozenset[str]) -> str | None:
    """Which part of an imported module the code with these names must not use; None where it may."""
    name = str(vars(module).get("__name__", ""))
    top = name.partition(".")[0]
    if name == "sys":
        used = mentioned & vars(module).keys() - _CONSTANT
        return None if mentioned & _CONSTANT and not used - _SYS_BESIDE else name
    if top in sys.stdlib_module_names:
        return None if top in _PURE else name
    if top == "numpy":
        return name if name.startswith("numpy.random") else _first(name, mentioned & _NUMPY & vars(module).keys())
    if top in ("torch", "torchvision", "torchaudio"):
        return _first(name, mentioned & _TORCH & vars(module).keys())
    return None if is_trusted(top) else name


def _first(module: str, names: frozenset[str] | set[str]) -> str | None:
    return f"{module}.{min(names)}" if names else None


def is_pure(name: object) -> bool:
    """True where functions and classes of the module with this name may be called: `__module__` of what was reached."""
    name = str(name or "")
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return top in _PURE
    return not name.startswith("numpy.random") and is_trusted(top)


def known_instances(cls: type) -> bool:
    """True where objects of a library's class may be reached, as far as the library goes."""
    top = str(cls.__module__).partition(".")[0]
    return top not in sys.stdlib_module_names or top in _INSTANCES


_trusted: dict[str, bool] = {"": True, "grape": True, "torch": True, "numpy": True}


def is_trusted(package: str) -> bool:
    """True where an installed package is about tensors: some of its code mentions torch."""
    known = _trusted.get(package)
    if known is None:
        known = _trusted[package] = _mentions_torch(package)
    return known


def _mentions_torch(package: str) -> bool:
    beginning = f"{package}."
    loaded: list[object] = [m for name, m in list(sys.modules.items()) if f"{name}.".startswith(beginning)]
    modules = [vars(module) for module in loaded if isinstance(module, types.ModuleType)]
    if not modules:  # made by hand, in no module that was imported
        return True
    if any("torch" in names or str(names.get("__name__")).endswith("torch") for names in modules):
        return True
    values = [value for names in modules for value in list(names.values())]
    values += [member for value in values if type(value) is type for member in list(vars(value).values())]
    return any("torch" in value.__code__.co_names for value in values if isinstance(value, types.FunctionType))
