"""`%grape remember` and `%grape recall`: what one process learned of cells, for the next one."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from ...errors import UsageError
from ...render.files import write_text
from ...render.units import plural
from ..engine import Engine
from .history import Past
from .remembered import Machine, read, written

_WORDS = {"streams": "left to operator streams: {}", "graphs": "served by graphs: {}", "written": "as written: {}"}


def remember(engine: Engine, path: str) -> str:
    """Write what is known of the cells so far to a file, in words. Raises `UsageError`."""
    known = engine.history.known()
    if not known:
        raise UsageError("nothing is known yet that would help a new kernel; run the cells again under %%grape")
    write_text(path, written(known, _machine(engine)), "what was learned")
    return f"remembered {plural(len(known), 'cell')} in {path}: {_served(known.values())}"


def recall(engine: Engine, path: str) -> str:
    """Meet the cells of a file that `remember` wrote as if they had run here, in words. What was written on another
    machine is not used. Raises `UsageError`.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UsageError(f"cannot read '{path}': {why}") from None
    found = read(text, path)
    other = found.machine.difference(_machine(engine))
    if other is not None:
        return f"nothing is recalled from {path}: {other}"
    engine.history.recall(found.pasts)
    return f"recalled {plural(len(found.pasts), 'cell')} from {path}: {_served(found.pasts.values())}"


def _machine(engine: Engine) -> Machine:
    import torch

    return Machine(torch=str(torch.__version__), python=platform.python_version(), device=engine.device)


def _served(pasts: Iterable[Past]) -> str:
    """In words, what serves the cells."""
    kinds = Counter(_served_by(past) for past in pasts)
    return ", ".join(text.format(kinds[kind]) for kind, text in _WORDS.items() if kinds[kind])


def _served_by(past: Past) -> str:
    if past.served:
        return "graphs"
    return "streams" if past.streamless is None and past.evidence.torch_ran else "written"
