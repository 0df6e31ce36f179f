"""Python, torch and the notebook's packages."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from typing import Any

from .check import Check, dotted, first_line, installed, numbers

_PYTHON = ((3, 11), (3, 13))
_TORCH = ((2, 11), (2, 13))
TORCH_NEEDS = f"pip install 'torch>={dotted(_TORCH[0])},<{_TORCH[1][0]}.{_TORCH[1][1] + 1}'"


def _in_range(version: tuple[int, int], tested: tuple[tuple[int, int], tuple[int, int]]) -> bool | None:
    """False where too old; None where newer than what was tested."""
    return False if version < tested[0] else True if version <= tested[1] else None


def python() -> Iterator[Check]:
    yield Check(
        name="Python",
        ok=_in_range(sys.version_info[:2], _PYTHON),
        found=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        needs=f"Python {dotted(_PYTHON[0])} to {dotted(_PYTHON[1])}",
        effect="other versions are not tested",
    )


def torch_imports() -> bool:
    try:
        import torch  # noqa: F401
    except Exception:
        return False
    return True


def torch() -> Iterator[Check]:
    try:
        import torch as library
    except Exception as error:
        yield Check(
            name="torch",
            ok=False,
            found=first_line(error),
            needs=TORCH_NEEDS,
            effect="only reports that were saved can be read",
        )
        return
    version = str(library.__version__)
    yield Check(
        name="torch",
        ok=_in_range(numbers(version), _TORCH),
        found=version,
        needs=TORCH_NEEDS,
        effect="other versions are not tested",
    )
    kept = _keeps_graphs(library)
    yield Check(
        name="torch.cuda.CUDAGraph",
        ok=kept,
        found="keeps its graph (keep_graph)" if kept else "has no keep_graph",
        needs=TORCH_NEEDS,
        effect="no CUDA graphs; cells run and are advised on",
    )


def _keeps_graphs(library: Any) -> bool:
    graph = getattr(library.cuda, "CUDAGraph", None)
    return all(hasattr(graph, name) for name in ("raw_cuda_graph", "instantiate", "raw_cuda_graph_exec"))


def streams() -> Iterator[Check]:
    from .. import native

    lacks = native.missing()
    built = native.ready()
    found = native.load() if built else lacks
    broken = found if isinstance(found, native.Unavailable) else None
    yield Check(
        name="operator streams",
        ok=None if broken else True,
        found=broken.reason if broken else "built" if built else "built at first use, in about half a minute",
        effect="no operator streams (--engine auto or streams, grape.stream); regions work",
    )


def notebook() -> Iterator[Check]:
    for name, distribution, minimum, effect in (
        ("IPython", "ipython", (8, 12), "no %%grape; the command line and grape.session() work"),
        ("ipywidgets", "ipywidgets", (8, 1), "static reports only"),
        ("anywidget", "anywidget", (0, 9), "static reports only"),
    ):
        version = installed(distribution)
        yield Check(
            name=name,
            ok=version is not None and numbers(version) >= minimum,
            found=version or "not installed",
            needs=f"pip install '{distribution}>={dotted(minimum)}'",
            effect=effect,
        )


def transformers() -> Iterator[Check]:
    version = installed("transformers")
    yield Check(
        name="transformers",
        ok=True if version else None,
        found=version or "not installed",
        needs="pip install transformers for the example notebook on generate",
        effect="Grape itself does not use it",
    )
