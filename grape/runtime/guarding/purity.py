"""Which functions of libraries a region may call: those that change and read nothing that guards do not know.

What the person's own code changes and reads, guards follow. Libraries they do not follow: there it must be known that
nothing but tensors, and objects that the guards reach, is read or changed. Lists of what is pure are short, lists of
what is not have no end; so what is in none of these is not called in a region.
"""

from __future__ import annotations

import collections
import sys
import types
from typing import Any

import torch

_PURE = frozenset(
    {
        *("abc", "_abc", "_collections_abc", "collections", "_collections", "bisect", "_bisect", "heapq", "_heapq"),
        *("contextlib", "copy", "copyreg", "dataclasses", "enum", "types", "typing", "_typing", "numbers", "string"),
        *("functools", "_functools", "itertools", "operator", "_operator", "weakref", "_weakref", "_weakrefset"),
        *("math", "cmath", "_statistics", "statistics", "fractions", "struct", "_struct", "codecs", "_codecs"),
        *("re", "_sre", "_string", "keyword", "reprlib", "textwrap", "unicodedata", "inspect", "importlib", "_imp"),
        *("os", "posixpath", "genericpath", "logging", "warnings", "__future__", "torch", "numpy", "threading"),
        *("contextvars", "_contextvars"),
    }
)
"""Packages and modules. Of `os`, `logging` and `warnings` this is the Python code, which reads the environment, drops
records below their level and looks at filters; what acts is in C, and in none of these lists."""
_NOT_PURE = (
    *("torch.distributed", "torch.utils.data", "torch.utils.tensorboard", "torch.serialization"),
    *("torch._C._distributed_c10d", "torch._C._distributed_rpc", "torch.hub", "torch.package", "torch.onnx"),
    *("torch.cuda.memory", "numpy.random", "weakref.finalize.__init__", "threading.Thread", "threading.Timer"),
)
"""Exceptions from that: modules, with all in them, and classes."""
_SETTERS = frozenset(
    {
        *("_set_mkldnn_enabled", "_set_mkldnn_deterministic", "_set_onednn_allow_tf32", "_set_nnpack_enabled"),
        *("_set_cpu_allow_fp16_reduced_precision_reduction", "_set_qengine", "set_num_threads", "_set_warnAlways"),
        *("set_num_interop_threads", "set_flush_denormal", "_set_view_replay_enabled", "_set_multithreading_enabled"),
        *(
            "_set_check_sparse_tensor_invariants",
            "_set_throw_on_mutable_data_ptr",
            "_set_print_stack_traces_on_fatal_signal",
        ),
    }
)
"""Of torch's extension, those that set what no key of a region on a GPU has: what they set may be so already, and set
back by who calls the region."""
_OF_CUDA = frozenset(
    {
        *("_set_cudnn_enabled", "_set_cudnn_benchmark", "_set_cudnn_deterministic", "_set_cudnn_allow_tf32"),
        *("_set_cublas_allow_tf32", "_set_cublas_allow_fp16_accumulation", "_set_sdp_use_flash", "_set_sdp_use_math"),
        *("_set_cublas_allow_fp16_reduced_precision_reduction", "_set_cublas_allow_bf16_reduced_precision_reduction"),
        *("_set_sdp_use_cudnn", "_set_sdp_use_mem_efficient", "_set_sdp_use_overrideable", "_set_sdp_priority_order"),
        *("_set_blas_preferred_backend", "_set_linalg_preferred_backend", "_set_cudnn_depthwise_kernel"),
    }
)
"""The same, of a region on the CPU."""
_BUILTINS_WITH_EFFECTS = frozenset({"print", "input", "open", "breakpoint"})
_OF_OTHERS = frozenset(
    {
        *("sys._getframe", "sys.intern", "sys.getrefcount", "sys.getsizeof", "sys.exc_info", "sys.exception"),
        *("sys.getrecursionlimit", "sys.getdefaultencoding", "sys.is_finalizing", "posix.fspath", "_io.text_encoding"),
        *("_thread.get_ident", "_thread.allocate_lock", "_thread.acquire", "_thread.release", "_thread.__enter__"),
        *("_thread.__exit__", "_thread._is_owned", "_warnings._filters_mutated", "gc.is_tracked"),
        *("_warnings._filters_mutated_lock_held", "_warnings._acquire_lock", "_warnings._release_lock"),
    }
)
"""C functions and methods, without the names of their classes, of modules that are not pure."""
_FILES = frozenset({"PyTorchFileWriter", "PyTorchFileReader", "fromfile", "tofile", "dump", "seterr"})
"""Of torch and numpy."""
_OF_PYTHON = (types.FunctionType, staticmethod, classmethod, property)
_READS_OF_CONTAINERS = frozenset({"copy", "count", "index", "find", "decode", "__len__", "__contains__", "__getitem__"})


def pure_builtin(function: Any) -> str | None:
    """The name of a C function or method if calling it may change or read what nobody watches; None if not."""
    name, owner = function.__name__, function.__self__
    module = function.__module__
    if module is None:  # a method, which belongs to the module of the class that has it
        cls = owner if isinstance(owner, type) else type(owner)
        home = next((base for base in cls.__mro__ if _is_in_c(vars(base).get(name))), cls)
        module = home.__module__
        if home in (collections.deque, bytearray) and cls is not home and name not in _READS_OF_CONTAINERS:
            return f"{cls.__name__}.{name}"  # which the guards do not look into
    package = module.partition(".")[0]
    full = f"{module}.{name}"
    if module == "builtins":
        return name if name in _BUILTINS_WITH_EFFECTS else None
    if full == "pybind11_builtins.__new__":  # the object of a class that torch has in C++, before it is initialized
        return None
    if package in _PURE:
        qualified = f"{module}.{function.__qualname__}"
        acts = _is_excepted(qualified) or not _FILES.isdisjoint(function.__qualname__.split("."))
        acts |= module == "torch._C" and (name in _SETTERS or (name in _OF_CUDA and not torch.cuda.is_available()))
        return full if acts else None
    return None if full in _OF_OTHERS else full


def _is_in_c(method: object) -> bool:
    """False for one of Python's by the same name, which calls that of the base."""
    return method is not None and not isinstance(method, _OF_PYTHON)


def pure_library(code: types.CodeType, namespace: dict[str, object]) -> str | None:
    """The name of a library's Python function if calling it may change or read what nobody watches; None if not."""
    module = namespace.get("__name__")
    if not isinstance(module, str):
        return code.co_qualname
    full = f"{module}.{code.co_qualname}"
    if _is_excepted(full):
        return full
    package = module.partition(".")[0]
    return None if package in _PURE or knows_torch(package) else full


def _is_excepted(full: str) -> bool:
    return any(full == one or full.startswith(one + ".") for one in _NOT_PURE)


_written_for_torch: set[str] = set()


def knows_torch(package: str) -> bool:
    """True where a package was written for torch, one of its modules that are loaded has it: what such code keeps, it
    keeps in modules and tensors, and where it acts it goes through C, which is looked at as well."""
    if package not in _written_for_torch:
        inside = package + "."
        for name, module in list(sys.modules.items()):
            mine = name == package or name.startswith(inside)
            if mine and getattr(module, "__dict__", {}).get("torch") is torch:
                _written_for_torch.add(package)
                break
    return package in _written_for_torch
