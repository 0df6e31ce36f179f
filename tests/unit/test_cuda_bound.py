"""The bound of loops on CUDA: the kernel's own source, run on the host, against the tape's loops."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grape.runtime.backends.cuda.bound import LOOPS, LoopBound
from grape.runtime.backends.cuda.executables.kernels import SOURCE
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.backends.reference.graph import WhileStep

CPU = torch.device("cpu")
_values: dict[int, int] = {}
"""By handle: what its condition was set to last."""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no compiler for the kernels' source")
    folder: Path = tmp_path_factory.mktemp("kernels")
    source = SOURCE.decode().replace('extern "C" ', "").replace("__global__ ", "").replace("__device__ ", "")
    definition = "void (*set)(unsigned long long, unsigned int);\n"
    definition += "void cudaGraphSetConditional(unsigned long long h, unsigned int v) { set(h, v); }\n"
    (folder / "kernels.c").write_text(source + definition)
    made = str(folder / "kernels.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, str(folder / "kernels.c")], check=True)
    library = ctypes.CDLL(made)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_ulonglong, ctypes.c_uint)
    library.kept = kind(_values.__setitem__)
    ctypes.c_void_p.in_dll(library, "set").value = ctypes.cast(library.kept, ctypes.c_void_p).value
    return library


class Loop:
    """A WHILE node as a device runs it. `lasts`: so often its condition stays true, in turn for each entry."""

    def __init__(self, kernels: Any, bound: LoopBound, number: int, lasts: list[int], inner: list[Loop]) -> None:
        self.kernels, self.bound, self.number, self.lasts, self.inner = kernels, bound, number, lasts, inner
        self.on = torch.tensor(False)
        self.runs: list[int] = []

    def steer(self, *, first: bool) -> None:
        arguments = (ctypes.c_void_p(self.on.data_ptr()), ctypes.c_void_p(self.bound.cells.data_ptr()))
        self.kernels.grape_steer_loop(ctypes.c_ulonglong(self.number), *arguments, self.number, int(first))

    def run(self) -> None:
        left = self.lasts[len(self.runs) % len(self.lasts)]
        self.runs.append(0)
        entry = len(self.runs) - 1
        self.on.fill_(left > 0)
        self.steer(first=True)
        while _values[self.number]:
            self.runs[entry] += 1
            for loop in self.inner:
                loop.run()
            left -= 1
            self.on.fill_(left > 0)
            self.steer(first=False)


class ReferenceLoop(Loop):
    def run(self) -> None:
        left = self.lasts[len(self.runs) % len(self.lasts)]
        self.runs.append(0)
        entry = len(self.runs) - 1
        loop = self

        class Body:
            def run(self) -> None:
                nonlocal left
                loop.runs[entry] += 1
                for one in loop.inner:
                    one.run()
                left -= 1
                loop.on.fill_(left > 0)

        self.on.fill_(left > 0)
        WhileStep(self.on, (Body(),)).run()


counts = st.lists(st.integers(0, 6), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(outer=counts, inner=counts, last=counts, limits=st.lists(st.none() | st.integers(0, 7), min_size=1, max_size=4))
def test_loops_end_as_on_the_tape(
    kernels: Any, outer: list[int], inner: list[int], last: list[int], limits: list[int | None]
) -> None:
    bound, tape = LoopBound(CPU), ReferenceBackend()
    device, reference = (
        [kind(kernels, bound, 0, outer, [kind(kernels, bound, 1, inner, [])]), kind(kernels, bound, 2, last, [])]
        for kind in (Loop, ReferenceLoop)
    )
    for limit in limits:
        for backend, loops in ((bound, device), (tape, reference)):
            if limit is None:
                for loop in loops:
                    loop.run()
                continue
            with backend.of(limit) if isinstance(backend, LoopBound) else backend.bounded(limit) as reached:
                for loop in loops:
                    loop.run()
                loops[0].ended = reached()  # type: ignore[attr-defined]
        if limit is not None:
            assert device[0].ended == reference[0].ended  # type: ignore[attr-defined]
    pairs = [*zip(device, reference, strict=True), (device[0].inner[0], reference[0].inner[0])]
    assert all(one.runs == other.runs for one, other in pairs)


def test_a_condition_is_copied(kernels: Any) -> None:
    for value in (True, False, True):
        flag = torch.tensor(value)
        kernels.grape_set_condition(ctypes.c_ulonglong(9), ctypes.c_void_p(flag.data_ptr()))
        assert _values[9] == value


def test_a_bound_ends_with_its_block() -> None:
    with torch.inference_mode():
        bound = LoopBound(CPU)
    cells = bound.cells.clone()
    assert cells.numel() == 2 + LOOPS and cells[0] == 2**63 - 1 and not cells[1:].any()
    with pytest.raises(ZeroDivisionError), bound.of(3) as reached:
        assert bound.cells[0] == 3 and not reached()
        bound.cells[1] = 1
        assert reached()
        raise ZeroDivisionError
    with bound.of(1) as reached:
        assert not reached()
    assert torch.equal(bound.cells, cells)
