"""Functions of `torch.compile` beside a stream: the compiler's guards, calls of its code, and CUDA graphs of that."""

from .calls import watch as watch_code
from .code import Code
from .graphs import CompiledGraphs
from .guarded import Key
from .guarded import watch as watch_guards
from .process import Process, on_cuda

__all__ = ["Code", "CompiledGraphs", "Key", "Process", "on_cuda", "watch_code", "watch_guards"]
