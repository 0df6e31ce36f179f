"""The doctor on this machine and on machines played by fakes. It never raises and says what to install."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

import grape.doctor
from grape.doctor import Check, checks, doctor, gpu, selftest, software
from grape.profiling.devices import nvml

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu examines a GPU")


def by_name(found: tuple[Check, ...]) -> dict[str, Check]:
    assert len({check.name for check in found}) == len(found)
    return {check.name: check for check in found}


def only(examined: Iterator[Check]) -> Check:
    (check,) = examined
    return check


def test_this_machine() -> None:
    found = by_name(checks())
    assert list(found) == [
        "Python",
        "torch",
        "torch.cuda.CUDAGraph",
        "torch's CUDA",
        "GPU",
        "NVIDIA driver",
        "cuda.bindings",
        "conditional nodes",
        "NVML",
        "operator streams",
        "IPython",
        "ipywidgets",
        "anywidget",
        "transformers",
        "profiler",
        "self-test",
        "shared executables",
        "conditional bodies",
        "control flow costs",
    ]
    assert found["torch"].found == torch.__version__ and found["torch"].ok
    assert found["self-test"] == Check(
        name="self-test",
        ok=True,
        found="graph, rehearsed on the CPU: replays equal eager",
        needs="a report of this page as a bug",
        effect="graphs cannot be trusted here; use %%grape --profile",
    )
    assert found["profiler"].ok
    assert found["GPU"].ok is None


def test_the_page_has_a_line_a_check_and_a_conclusion() -> None:
    lines = doctor().splitlines()
    assert len(lines) == len(checks()) + 2
    assert lines[0].startswith("ok  Python ")
    assert lines[-1] == (
        "everything Grape needs is here, except a GPU: cells run and are advised on, nothing gets faster"
    )
    assert all(line[:4] in ("ok  ", "--  ") for line in lines[:-2])


def page(monkeypatch: pytest.MonkeyPatch, *found: Check) -> list[str]:
    monkeypatch.setattr(grape.doctor, "checks", lambda: found)
    return doctor().splitlines()


def test_what_a_line_says(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = page(
        monkeypatch,
        Check(name="a", ok=True, found="1.0", needs="never shown", effect="never shown"),
        Check(name="longer", ok=False, found="not installed", needs="pip install longer", effect="no reports"),
        Check(name="b", ok=None, found="absent", effect="optional"),
        Check(name="c", ok=False, found="old", needs="pip install longer"),
        Check(name="d", ok=False, found="old", needs="a new driver"),
    )
    assert lines == [
        "ok  a       1.0",
        "NO  longer  not installed; needs pip install longer; no reports",
        "--  b       absent; optional",
        "NO  c       old; needs pip install longer",
        "NO  d       old; needs a new driver",
        "",
        "Grape needs pip install longer; a new driver",
    ]


def test_the_conclusion_where_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = page(monkeypatch, Check(name="GPU 0", ok=True, found="H200"), Check(name="x", ok=None, found="absent"))
    assert lines[-1] == "everything Grape needs is here"


def test_a_check_that_raises_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_thing() -> Iterator[Check]:
        yield Check(name="first", ok=True, found="fine")
        raise OSError("libcuda.so: wrong ELF class\nmore")

    monkeypatch.setattr(grape.doctor, "_TRIALS", (broken_thing,))
    last = checks()[-2:]
    assert last[0].name == "first"
    assert (last[1].name, last[1].ok) == ("broken thing", False)
    assert last[1].found == "the check failed: OSError: libcuda.so: wrong ELF class"


def test_torch_that_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = by_name(checks())
    assert found["torch"].ok is False and found["torch"].needs == "pip install 'torch>=2.11,<2.14'"
    assert found["IPython"].ok
    assert "self-test" not in found and "GPU" not in found
    assert doctor().splitlines()[-1] == "Grape needs pip install 'torch>=2.11,<2.14'"


@pytest.mark.parametrize(
    ("version", "ok"), [("2.10.1", False), ("2.11.0+cu130", True), ("2.13.0", True), ("2.14.0a0+git1", None)]
)
def test_versions_of_torch(version: str, ok: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert next(software.torch()).ok is ok


def test_a_torch_without_keep_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", type("CUDAGraph", (), {"replay": None}))
    check = list(software.torch())[1]
    assert (check.ok, check.found) == (False, "has no keep_graph")


@pytest.mark.parametrize(("version", "ok"), [((3, 10), False), ((3, 11), True), ((3, 13), True), ((3, 14), None)])
def test_versions_of_python(version: tuple[int, int], ok: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))
    assert only(software.python()).ok is ok


def test_missing_notebook_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "installed", {"ipython": "7.34.0", "ipywidgets": "8.1.9"}.get)
    found = by_name((*software.notebook(), *software.transformers()))
    assert [(name, check.ok) for name, check in found.items()] == [
        ("IPython", False),
        ("ipywidgets", True),
        ("anywidget", False),
        ("transformers", None),
    ]
    assert found["anywidget"].needs == "pip install 'anywidget>=0.9'"
    assert found["IPython"].found == "7.34.0"


class Driver:
    """Plays pynvml on a machine with one GPU and a driver for CUDA `level`."""

    def __init__(self, level: int) -> None:
        self.level = level

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.level

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159"

    def nvmlDeviceGetCount(self) -> int:
        return 1


def machine(monkeypatch: pytest.MonkeyPatch, *, level: int, usable: bool = True) -> None:
    monkeypatch.setattr(nvml, "_library", Driver(level))
    monkeypatch.setattr(nvml, "_tried", True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)


@pytest.mark.parametrize(
    ("level", "driver_ok", "nodes_ok", "nodes"),
    [
        (12020, False, False, "none in CUDA 12.2"),
        (12040, True, None, "IF, WHILE"),
        (12080, True, True, "IF, WHILE, ELSE, SWITCH"),
        (13000, True, True, "IF, WHILE, ELSE, SWITCH"),
    ],
)
def test_drivers(
    level: int, driver_ok: bool, nodes_ok: bool | None, nodes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, level=level)
    driver, conditional = only(gpu.driver()), only(gpu.conditional_nodes())
    assert (driver.ok, conditional.ok, conditional.found) == (driver_ok, nodes_ok, nodes)
    assert driver.found == f"580.159, supports CUDA {level // 1000}.{level % 1000 // 10}"


def test_a_gpu_under_a_torch_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, level=13000, usable=False)
    monkeypatch.setattr(torch.version, "cuda", None)
    check = only(gpu.torch_cuda())
    assert (check.ok, check.needs) == (False, "a CUDA build of torch: this machine has an NVIDIA GPU")
    assert only(gpu.devices()).ok is None


def test_a_gpu_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, level=12020, usable=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    check = only(gpu.devices())
    assert (check.ok, check.found) == (False, "the driver has 1, torch cannot use any")
    assert only(gpu.torch_cuda()).ok


def test_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, level=13000)
    card = SimpleNamespace(name="NVIDIA H200", total_memory=139 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    assert [(c.name, c.ok, c.found) for c in gpu.devices()] == [
        ("GPU 0", True, "NVIDIA H200, 139 GiB, compute 9.0"),
        ("GPU 1", True, "NVIDIA H200, 139 GiB, compute 9.0"),
    ]


def test_missing_bindings_matter_with_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert only(gpu.bindings()).ok is None
    machine(monkeypatch, level=13000)
    check = only(gpu.bindings())
    assert (check.ok, check.needs) == (False, "pip install 'cuda-bindings>=12.8'")


def test_a_missing_pynvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_tried", True)
    monkeypatch.setattr(nvml, "_library", None)
    monkeypatch.setattr(gpu, "installed", lambda _: None)
    check = only(gpu.nvml())
    assert (check.ok, check.found, check.needs) == (False, "pynvml is not installed", "pip install nvidia-ml-py")


def test_a_replay_that_differs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from grape.runtime.backends.reference.executable import ReferenceGraph

    monkeypatch.setattr(ReferenceGraph, "replay", lambda self: None)
    check = only(selftest.replay())
    assert check.ok is False and check.found == "graph, rehearsed on the CPU: replay 1 differs from eager"


def test_a_profiler_that_is_taken() -> None:
    with torch.autograd.profiler.profile(use_kineto=True):
        check = only(selftest.profiler())
    assert check.ok is False and check.found.startswith("another profiler is running")


def test_importing_it_imports_neither_torch_nor_ipython() -> None:
    code = "import sys, grape.doctor; print([m for m in ('torch', 'IPython', 'pynvml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
