"""Says what works on this machine: the versions Grape needs, what each is for, and a real capture and replay.

Nothing here raises, and importing this package imports neither torch nor IPython: a broken machine is when it is asked.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

from . import gpu, selftest, software
from .check import Check, first_line

__all__ = ["Check", "checks", "doctor"]

_Examiner = Callable[[], Iterator[Check]]
_BEFORE_TORCH: tuple[_Examiner, ...] = (software.python, software.torch)
_WITH_TORCH: tuple[_Examiner, ...] = (
    gpu.torch_cuda,
    gpu.devices,
    gpu.driver,
    gpu.bindings,
    gpu.conditional_nodes,
    gpu.nvml,
    software.streams,
)
_NOTEBOOK: tuple[_Examiner, ...] = (software.notebook, software.transformers)
_TRIALS: tuple[_Examiner, ...] = (
    selftest.profiler,
    selftest.replay,
    selftest.shared_executables,
    selftest.conditional_bodies,
    gpu.control_flow_costs,
)


def doctor() -> str:
    """Every check on a line of its own, and a last line that says whether anything must be installed."""
    found = checks()
    width = max(len(check.name) for check in found)
    return "\n".join([*(_line(width, check) for check in found), "", _conclusion(found)])


def checks() -> tuple[Check, ...]:
    """All checks, in the order in which one thing needs another. Never raises.

    Imports torch, and on a GPU initializes CUDA; takes up to a few seconds.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch warns of here is a line of the page
        found = [check for examine in _BEFORE_TORCH for check in _safely(examine)]
        works = software.torch_imports()
        rest = (*_WITH_TORCH, *_NOTEBOOK, *_TRIALS) if works else _NOTEBOOK
        return (*found, *(check for examine in rest for check in _safely(examine)))


def _safely(examine: _Examiner) -> Iterator[Check]:
    """The checks that `examine` yields, and a failed check where it raises."""
    try:
        yield from examine()
    except Exception as error:
        yield Check(
            name=examine.__name__.replace("_", " "),
            ok=False,
            found=f"the check failed: {type(error).__name__}: {first_line(error)}",
            needs="a repair of what this error names",
            effect="whether it works is not known",
        )


def _line(width: int, check: Check) -> str:
    mark = {True: "ok", False: "NO", None: "--"}[check.ok]
    text = f"{mark}  {check.name:<{width}}  {check.found}"
    if check.ok:
        return text
    return "; ".join(
        [text, *([f"needs {check.needs}"] if check.needs else []), *([check.effect] if check.effect else [])]
    )


def _conclusion(found: tuple[Check, ...]) -> str:
    needs = dict.fromkeys(check.needs for check in found if check.ok is False)
    if needs:
        return "Grape needs " + "; ".join(needs)
    if any(check.name == "GPU" and check.ok is None for check in found):
        return "everything Grape needs is here, except a GPU: cells run and are advised on, nothing gets faster"
    return "everything Grape needs is here"
