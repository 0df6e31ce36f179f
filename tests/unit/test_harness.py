"""tests/conftest.py itself: what it must catch, it catches. Each case is a pytest run of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
OPTIONS = """
[pytest]
markers =
    gpu
    random_long
addopts = --import-mode=importlib --strict-markers -ra -p no:cacheprovider
"""


QUIET = {"PY_COLORS": "0", "COLUMNS": "200", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def prepared(folder: Path) -> Path:
    """`folder`, with a copy of the conftest."""
    (folder / "tests" / "gpu").mkdir(parents=True)
    (folder / "pytest.ini").write_text(OPTIONS)
    shutil.copy(CONFTEST, folder / "tests" / "conftest.py")
    return folder


def output_of_pytest(folder: Path, *arguments: str, **environment: str) -> str:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("GRAPE_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=folder,
        env=inherited | QUIET | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout + done.stderr


@pytest.fixture
def run(tmp_path: Path):
    """Runs pytest on one file of tests beside a copy of the conftest; returns its output."""
    folder = prepared(tmp_path)

    def run(source: str, *arguments: str, where: str = "tests/test_it.py", **environment: str) -> str:
        (folder / where).write_text(source)
        return output_of_pytest(folder, *arguments, where, **environment)

    return run


LEAKS = {
    "sys.getprofile()": "import sys\ndef test(): sys.setprofile(lambda *a: None)",
    "sys.gettrace()": "import sys\ndef test(): sys.settrace(lambda *a: None)",
    "sys.displayhook": "import sys\ndef test(): sys.displayhook = print",
    "torch.nn.Module.__call__": "import torch\ndef test(): torch.nn.Module.__call__ = lambda self: None",
    "torch.cuda.is_current_stream_capturing": (
        "import torch\ndef test(): torch.cuda.is_current_stream_capturing = lambda: False"
    ),
    "grad mode": "import torch\ndef test(): torch._C._set_grad_enabled(False)",
    "default dtype": "def test():\n    import torch\n    torch.set_default_dtype(torch.float64)",
    "IPython hooks": (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "def hook(): pass\nhook.__module__ = 'grape.magics'\n"
        "def test(): InteractiveShell.instance().events.register('pre_run_cell', hook)"
    ),
    "threads": (
        "import threading\nstop = threading.Event()\ndef work(): stop.wait(5)\nwork.__module__ = 'grape.profiling'\n"
        "def test(): threading.Thread(target=work, daemon=True).start()"
    ),
    "dispatch modes": (
        "import torch\nfrom torch.utils._python_dispatch import TorchDispatchMode\n"
        "class Mode(TorchDispatchMode): pass\ndef test(): Mode().__enter__()"
    ),
}


@pytest.fixture(scope="module")
def leaks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of one run of all leaks, each in a file of its own; nothing runs after the mode that refuses all."""
    folder = prepared(tmp_path_factory.mktemp("leaks"))
    for number, source in enumerate(LEAKS.values()):
        (folder / "tests" / f"test_{number:02}.py").write_text(source)
    return output_of_pytest(folder, "tests")


@pytest.mark.parametrize("name", LEAKS)
def test_what_a_test_leaves_behind_is_an_error_of_that_test(leaks: str, name: str) -> None:
    place = f"ERROR tests/test_{list(LEAKS).index(name):02}.py::test - AssertionError: the test left behind: "
    told = [line.removeprefix(place) for line in leaks.splitlines() if line.startswith(place)]
    assert len(told) == 1, leaks
    assert told[0].startswith(name)
    # IPython's thread may warn that the folder of its history is gone.
    assert re.search(rf"\b{len(LEAKS)} passed, (\d+ warnings?, )?{len(LEAKS)} errors", leaks), leaks


def test_a_test_that_cleans_up_passes(run) -> None:
    source = "import torch\ndef test():\n    with torch.no_grad(): pass\n    assert torch.get_num_threads() == 1\n"
    assert "1 passed in" in run(source)


NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
GPU_TEST = "def test(): assert True"


def test_a_gpu_test_is_skipped_without_a_device_and_failed_where_one_is_required(run) -> None:
    assert "1 skipped" in run(GPU_TEST, where="tests/gpu/test_it.py", **NO_GPU)
    output = run(GPU_TEST, where="tests/gpu/test_it.py", GRAPE_REQUIRE_GPU="1", **NO_GPU)
    assert "GRAPE_REQUIRE_GPU=1 and this GPU test did not run: Skipped: no CUDA device" in output
    assert "1 error in" in output


def test_a_gpu_file_that_skips_itself_fails_where_a_gpu_is_required(run) -> None:
    source = "import pytest\npytest.skip('not here', allow_module_level=True)"
    output = run(source, where="tests/gpu/test_it.py", GRAPE_REQUIRE_GPU="1", **NO_GPU)
    assert "GRAPE_REQUIRE_GPU=1 and this GPU test did not run: Skipped: not here" in output
    assert "1 error in" in output


def test_other_skips_stay_skips_where_a_gpu_is_required(run) -> None:
    assert "1 skipped in" in run("import pytest\ndef test(): pytest.skip('no')", GRAPE_REQUIRE_GPU="1")


SEEN = """
from hypothesis import given, strategies as st
seen = []
@given(st.integers())
def test_draw(x): seen.append(x)
def test_tell(): print("drawn", len(seen), seen)
"""


def drawn(output: str) -> str:
    found = re.search("drawn .*", output)
    assert found is not None, output
    return found.group()


def test_examples_are_fixed_unless_a_random_run_is_asked_for(run) -> None:
    assert drawn(run(SEEN, "-s")) == drawn(run(SEEN, "-s"))
    for random in (run(SEEN, "-s", "--grape-random", "150"), run(SEEN, "-s", GRAPE_RANDOM_EXAMPLES="150")):
        assert drawn(random).startswith("drawn 150 ")


def test_long_random_tests_wait_for_a_random_run(run) -> None:
    source = "import pytest\n@pytest.mark.random_long\ndef test(): pass"
    assert "1 skipped in" in run(source)
    assert "1 passed in" in run(source, "--grape-random", "5")
