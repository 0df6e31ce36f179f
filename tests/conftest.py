"""What holds for every test: nothing survives it, random tests are repeatable, GPU tests are never lost silently."""

from __future__ import annotations

import asyncio
import gc
import linecache
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

# Before anything imports torch or starts a kernel; kernels inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GRAPE_REFERENCE", "1")  # what graphs do is tested on the CPU

import pytest
from hypothesis import HealthCheck, settings

REQUIRE_GPU = os.environ.get("GRAPE_REQUIRE_GPU") == "1"

# Notebooks under tests/ are data for the tests (some fail on purpose); those in notebooks/ are executed.
collect_ignore_glob = ["**/*.ipynb"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--grape-random",
        type=int,
        metavar="N",
        default=int(os.environ.get("GRAPE_RANDOM_EXAMPLES", "0")),
        help="run property tests on N random examples each instead of a fixed few (also GRAPE_RANDOM_EXAMPLES)",
    )


def pytest_configure(config: pytest.Config) -> None:
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]
    settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=quiet, print_blob=True)
    settings.register_profile("random", settings.get_profile("fixed"), derandomize=False)
    examples = config.getoption("--grape-random")
    if examples > 0:
        settings.register_profile("random", settings.get_profile("random"), max_examples=examples)
    settings.load_profile("random" if examples > 0 else "fixed")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell's script runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Shells and kernels keep their history here, not in the home directory.
    folder = tempfile.mkdtemp(prefix="grape-ipython-")
    os.environ["IPYTHONDIR"] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "gpu" in item.path.parts and item.path.is_relative_to(config.rootpath / "tests" / "gpu"):
            item.add_marker(pytest.mark.gpu)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("random_long") and item.config.getoption("--grape-random") <= 0:
        pytest.skip("a long random run; ask for it with --grape-random N")
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


def _fail_instead(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"GRAPE_REQUIRE_GPU=1 and this GPU test did not run: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if REQUIRE_GPU and report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("gpu"):
        _fail_instead(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    if REQUIRE_GPU and report.skipped and collector.path.is_relative_to(collector.config.rootpath / "tests" / "gpu"):
        _fail_instead(report)
    return report


def _torch_state() -> dict[str, Any]:
    """Everything of torch that a session may change for a while. Empty where torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    return {
        "dispatch modes": _get_current_dispatch_mode_stack(),
        "function modes": _get_current_function_mode_stack(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        "default dtype": torch.get_default_dtype(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "functions": {
            "torch.nn.Module": dict(vars(torch.nn.Module)),
            "torch.Tensor": dict(vars(torch.Tensor)),
            "torch.cuda": dict(vars(torch.cuda)),
            "torch.cuda.graphs": dict(vars(torch.cuda.graphs)),
            "torch.overrides": dict(vars(torch.overrides)),
            "torch": dict(vars(torch)),
        },
    }


def _fresh_torch_state() -> dict[str, Any]:
    """What `_torch_state` gives in a process that has just imported torch, for tests that are the first to do so."""
    import torch

    return {
        "dispatch modes": [],
        "function modes": [],
        "grad mode": True,
        "inference mode": False,
        "autocast": (False, False),
        "default dtype": torch.float32,
        "deterministic algorithms": False,
        "functions": {"torch.nn.Module": {"__call__": torch.nn.Module._wrapped_call_impl}},
    }


def _of_grape(hook: Callable[..., Any]) -> bool:
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return module.split(".")[0] == "grape"


def _shell_hooks() -> list[str]:
    """What Grape has registered in the process's IPython shell. Empty where there is none."""
    interactive = sys.modules.get("IPython.core.interactiveshell")
    if interactive is None or not interactive.InteractiveShell.initialized():
        return []
    shell = interactive.InteractiveShell.instance()
    places = {
        "input_transformers_cleanup": shell.input_transformers_cleanup,
        "input_transformers_post": shell.input_transformers_post,
        "ast_transformers": shell.ast_transformers,
        "custom_matchers": getattr(shell.Completer, "custom_matchers", []),
        **{f"event {name}": hooks for name, hooks in shell.events.callbacks.items()},
        **{f"{kind} magic": list(table.values()) for kind, table in shell.magics_manager.magics.items()},
    }
    return sorted(f"{place}: {hook!r}" for place, hooks in places.items() for hook in hooks if _of_grape(hook))


def _threads() -> list[str]:
    targets = ((thread, getattr(thread, "_target", None)) for thread in threading.enumerate())
    return sorted(thread.name for thread, target in targets if _of_grape(target or thread))


def _graphs() -> int:
    """How many graphs the process's engine still holds."""
    process = sys.modules.get("grape.sessions.process")
    if process is None or process._engine is None:
        return 0
    context = process._engine.context
    stored = len(context.executables) if context.executables is not None else 0
    return max(stored, sum(len(region.entries) for region in list(context.regions)))


def _process_state() -> dict[str, Any]:
    monitoring = getattr(sys, "monitoring", None)
    return {
        "sys.getprofile()": sys.getprofile(),
        "sys.gettrace()": sys.gettrace(),
        "threading.getprofile()": threading.getprofile(),
        "sys.monitoring": [monitoring.get_tool(tool) for tool in range(6)] if monitoring else [],
        "sys.displayhook": sys.displayhook,
        "IPython hooks": _shell_hooks(),
        "threads": _threads(),
        "running event loop": asyncio._get_running_loop(),
        "graphs": _graphs(),
    }


def _exchanged(known: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """A patch of Grape's that was there before belongs to a graphed function of an earlier test."""
    if known != now:
        changed = ((key, one) for key, one in known.items() if now.get(key) is not one)
        yield from (key for key, one in changed if callable(one) and not _of_grape(one))


def _survivors(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for name, value in before.items():
        if name == "functions":
            for owner, known in value.items():
                yield from (f"{owner}.{key}" for key in _exchanged(known, after[name][owner]))
        elif after[name] != value:
            yield f"{name}: {value!r} became {after[name]!r}"


@pytest.fixture(autouse=True)
def nothing_survives() -> Iterator[None]:
    """No mode, hook, patch, profiler or thread is left when a test and its fixtures are done."""
    process, torch_state = _process_state(), _torch_state()
    yield
    left = list(_survivors(process, _process_state()))
    after = _torch_state()
    if after:
        left += _survivors(torch_state or _fresh_torch_state(), after)
    assert not left, "the test left behind: " + "; ".join(left)


@pytest.fixture(autouse=True, scope="module")
def small_collections() -> None:
    """Garbage collections look at what this file's tests make, not at everything that was imported before."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def sources_of_its_own() -> Iterator[None]:
    """What Grape takes for the person's code is what this test ran: other tests' cells would be looked at, too."""
    before = set(linecache.cache)
    yield
    for name in set(linecache.cache) - before:
        del linecache.cache[name]


@pytest.fixture(autouse=True)
def equal_seeds() -> None:
    """What a test draws does not depend on the tests before it."""
    random.seed(1)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(1)


@pytest.fixture(autouse=True)
def no_time_limits(request: pytest.FixtureRequest) -> Iterator[None]:
    """What is captured, profiled or compared must not depend on how busy the machine is that runs the tests."""
    if "torch" not in sys.modules or request.node.get_closest_marker("gpu"):
        yield
        return
    from grape.fixing import offers
    from grape.runtime.regions import call_profiles, captures
    from grape.sessions import cell

    # Not the fixture `monkeypatch`: that would end after `nothing_survives` looks at what a test's patches left.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captures, "TAPE_LIMIT_MS", float("inf"))
        patch.setattr(call_profiles, "PROFILE_AFTER_S", float("inf"))
        patch.setattr(offers, "_SECONDS", float("inf"))
        patch.setattr(cell, "FIRST_MS", float("inf"))
        patch.setattr(cell, "LATER_MS", float("inf"))
        yield


@pytest.fixture
def without_gradients() -> Iterator[None]:
    import torch

    with torch.no_grad():
        yield


@pytest.fixture
def without_eager_calls_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a graph replays it replays every call that it can."""
    monkeypatch.setattr("grape.runtime.regions.region.INTERLEAVE", 1 << 30)


@pytest.fixture
def closed_engine() -> Iterator[None]:
    """The process's engine holds nothing any more when the test is over."""
    yield
    from grape.sessions import close_engine

    close_engine()
