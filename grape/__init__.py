"""Grape: profiles a notebook cell of PyTorch code, applies CUDA graphs in place, and checks the results.

In a notebook: ``%load_ext grape``, then ``%%grape`` on the first line of a cell. Elsewhere: `grape.session`,
`grape.stream` and `grape.graph`. Importing this package imports neither torch nor IPython; the first use of a name
below does.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from . import errors
from . import originals as originals

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from .render import Report
    from .runtime import GraphedFunction, graph
    from .runtime.edges import pad_edges
    from .runtime.pipelines import Pipeline, pipeline
    from .runtime.predication import Predicate, cond, while_loop
    from .runtime.predication import flow as flow
    from .runtime.prefetch import prefetch
    from .sessions import StreamedFunction, session, stream
    from .whatif import WhatIf, what_if

    last: Report | None

__version__ = "0.1.0"

__all__ = [
    "GraphedFunction",
    "Pipeline",
    "Predicate",
    "Report",
    "StreamedFunction",
    "WhatIf",
    "__version__",
    "cond",
    "errors",
    "graph",
    "last",
    "load_ipython_extension",
    "pad_edges",
    "pipeline",
    "prefetch",
    "session",
    "stream",
    "unload_ipython_extension",
    "what_if",
    "while_loop",
]

_HOMES = {
    "GraphedFunction": ".runtime",
    "Pipeline": ".runtime.pipelines",
    "Predicate": ".runtime.predication",
    "Report": ".render",
    "StreamedFunction": ".sessions",
    "WhatIf": ".whatif",
    "cond": ".runtime.predication",
    "flow": ".runtime.predication",
    "graph": ".runtime",
    "pad_edges": ".runtime.edges",
    "pipeline": ".runtime.pipelines",
    "prefetch": ".runtime.prefetch",
    "session": ".sessions",
    "stream": ".sessions",
    "what_if": ".whatif",
    "while_loop": ".runtime.predication",
}


def __getattr__(name: str) -> object:
    if name == "last":
        sessions = sys.modules.get(f"{__name__}.sessions")
        return sessions.last_report() if sessions is not None else None
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'grape' has no attribute '{name}'; it offers {', '.join(__all__)}")
    value = getattr(import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(ipython: InteractiveShell) -> None:
    """Called by ``%load_ext grape``: register ``%%grape`` and ``%grape`` in this shell."""
    from .magics import load

    load(ipython)


def unload_ipython_extension(ipython: object) -> None:
    """Called by ``%unload_ext grape``: undo everything that Grape did in this shell."""
    from .magics import unload

    unload(ipython)
