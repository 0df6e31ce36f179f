"""Reads of what is pending that reach no kernel of the stream: where torch excludes the key itself, through addresses
of storages, and by kernels in Python that other kernels call."""

from __future__ import annotations

import ctypes
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from grape.streams import Settings
from tests.property.stream_programs import device, needs_compiler  # noqa: F401
from tests.unit.test_streams_contract import EAGER_TO_MATCH, agrees, chain

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]

LONG = Settings(shortest=13, hot=2, settled=0, patience=0, price=0, doubt=0)
"""Something is pending wherever a loop of some operators reads."""


@pytest.mark.parametrize(
    "make",
    [
        lambda t: torch.tensor([t[0], t[1]]),
        lambda t: torch.tensor([[1.0, t[0]], [t[1], 2]], dtype=torch.float64),
        lambda t: torch.tensor([t[0] > 0.5, t[1] > 0.5]),
        lambda t: torch.tensor([torch.complex(t[0], t[1])]),
        lambda t: torch.as_tensor((t[2],)),
        lambda t: torch.asarray([t[2]]),
        lambda t: torch.Tensor([t[0], t[3]]),
        lambda t: t.new_tensor([t[1]]),
        lambda t: torch.sparse_coo_tensor(torch.tensor([[0, 2]]), [t[1], t[2]]).to_dense(),
    ],
)
def test_tensors_in_lists_are_read_where_torch_excludes_the_key(make: Callable[[Tensor], Tensor]) -> None:
    def loop() -> list[Any]:
        x, out = torch.linspace(0.1, 0.9, 4), []
        for _ in range(40):
            y = chain(x)
            x.mul_(0.99)
            out.append(make(y * 2))
        return out

    agrees(loop, LONG)


def floats(address: int) -> list[float]:
    return [float(value) for value in (ctypes.c_float * 4).from_address(address)]


@pytest.mark.parametrize(
    "address",
    [
        lambda t: t.untyped_storage().data_ptr(),
        lambda t: t._typed_storage()._data_ptr(),
        lambda t: getattr(torch._C, "_data_address", Tensor.data_ptr)(t),
    ],
)
def test_who_asks_a_storage_for_its_address(address: Callable[[Tensor], int]) -> None:
    def loop() -> list[Any]:
        x, out = torch.ones(4), []
        at = address(x)
        for _ in range(40):
            x.add_(1)
            y = torch.tanh(x)
            out.append([floats(at), y.mul_(2)])
        return out

    agrees(loop, LONG)


def test_a_part_of_a_storage_whose_address_outlives_it() -> None:
    x = torch.zeros(4)

    def loop() -> list[Any]:
        there = (ctypes.c_float * 2).from_address(x.untyped_storage()[8:].data_ptr())
        out: list[Any] = []
        for i in range(30):
            x.copy_(chain(torch.linspace(0.1, 0.9, 4) * i))
            x.add_(1)
            out.append(list(there))
            there[0] = float(i)
            out.append(x * 2)
        return out

    agrees(loop, LONG)


@pytest.mark.parametrize(("file", "is_read"), [("lib/safetensors/torch.py", False), ("lib/other.py", True)])
def test_libraries_may_compare_where_storages_lie(file: str, is_read: bool) -> None:
    source = "def storage_ptr(tensor):\n    return tensor.untyped_storage().data_ptr()"
    names: dict[str, Any] = {}
    exec(compile(source, str(Path("/") / file), "exec"), names)
    weight = torch.ones(4)

    def loop() -> list[Any]:
        weight.fill_(1)
        out = []
        for _ in range(40):
            same = names["storage_ptr"](weight) == names["storage_ptr"](weight.view(2, 2))
            out.append([same, torch.tanh(weight.mul_(0.9)).sin()])
        return out

    assert ("memory that is not torch's alone" in agrees(loop).written) == is_read


def test_saving_leaves_memory_to_the_stream() -> None:
    """`torch.save` compares addresses of storages."""

    def loop() -> list[Any]:
        weight, out = torch.ones(4), []
        for i in range(40):
            y = torch.tanh(weight.mul_(0.9)) + 1
            if i % 10 == 5:
                file = io.BytesIO()
                torch.save([weight, y], file)
                file.seek(0)
                out.append(torch.load(file))
            out.append(y.sin())
        return out

    assert "memory that is not torch's alone" not in agrees(loop, LONG).written


def test_a_storage_dies_when_it_does_in_eager_code() -> None:
    def loop() -> list[Any]:
        out: list[Any] = []
        for i in range(40):
            x = torch.tensor([1.0, 2.0, float(i)])
            reference = StorageWeakRef(x.untyped_storage())
            z = torch.tanh(x) * x
            del x
            out.append([reference.expired(), torch.UntypedStorage._new_with_weak_ptr(reference.cdata) is None, z])
        return out

    agrees(loop, LONG)


def saved(module: Any) -> Any:
    file = io.BytesIO()
    torch.jit.save(module, file)
    return file.getvalue()


@pytest.mark.parametrize(
    "save",
    [
        saved,
        lambda module: module.save_to_buffer(),
        lambda module: module._save_to_buffer_for_lite_interpreter(),
    ],
)
def test_torchscript_writes_memory_to_a_file(save: Callable[[Any], bytes]) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    module: Any = torch.jit.script(Scaled())

    def loop() -> list[Any]:
        out = []
        with torch.no_grad():
            module.weight.fill_(1)
            for _ in range(40):
                module.weight.mul_(0.99).add_(0.5)
                y = torch.tanh(module.weight) + 1
                out.append([torch.jit.load(io.BytesIO(save(module))).weight, y.sin()])
        return out

    agrees(loop, LONG)


def test_what_torchscript_pickles() -> None:
    def loop() -> list[Any]:
        x, out = torch.ones(4), []
        for _ in range(40):
            y = torch.tanh(x.mul_(0.99).add_(0.5)) + 1
            out.append([torch._C._pickle_save([x, y]), y.sin()])
        return out

    agrees(loop, LONG)


@pytest.fixture
def counted() -> Iterator[SimpleNamespace]:
    """A kernel in Python for `mul` that counts its calls."""
    kernel = SimpleNamespace(calls=0)
    library = torch.library.Library("aten", "IMPL")

    def mul(x: Tensor, other: Tensor) -> Any:
        kernel.calls += 1
        return torch.ops.aten.div.Tensor(x, torch.ops.aten.reciprocal.default(other))

    library.impl("mul.Tensor", mul, "CPU")
    yield kernel
    library._destroy()


def test_a_kernel_in_python_that_the_kernel_of_another_operator_calls(counted: SimpleNamespace) -> None:
    def loop() -> list[Any]:
        counted.calls, out, x = 0, [], torch.linspace(0.1, 0.9, 4)
        for _ in range(40):
            y = torch.tanh(x) + x.sin()
            out.append([*torch._foreach_mul([y, x], [x, y]), counted.calls])
            x = y.cos().sigmoid()
        return out

    assert agrees(loop, EAGER_TO_MATCH).written["a kernel in Python"] > 20
