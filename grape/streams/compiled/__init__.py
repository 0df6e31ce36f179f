"""Functions of `torch.compile` beside a stream: the compiler's guards, calls of its code, and CUDA graphs of that."""

from .calls import watch as watch_code
from .graphs import CompiledGraphs, Process
from .guarded import Key
from .guarded import watch as watch_guards

__all__ = ["CompiledGraphs", "Key", "Process", "watch_code", "watch_guards"]
