"""`grape run SCRIPT.py`: output, exit code and errors are the plain script's, and the report comes at the end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grape.cli import main
from tests.processes import ROOT, environment_of
from tests.processes import ran as ran_forked

TORCH = """\
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(8)))
"""
LOOP = """\
x = torch.ones(1, 8)
with torch.no_grad():
    for _ in range(20):
        x = net(x)
print(x.sum().item())
"""

WITHOUT_TORCH = {
    "its names, arguments and path": """\
'''What it is.'''
import sys, os
print(__name__, __file__, __doc__, __spec__, __package__, __annotations__, type(__loader__).__name__)
print(sys.argv, sys.path[0], os.getcwd(), sys.modules["__main__"].__dict__ is globals(), __builtins__)
"no docstring"
print(__doc__, sorted(name for name in globals() if not name.startswith("__")))
""",
    "modules beside it are found": "import beside\nprint(beside.__file__, beside.value)\n",
    "annotations stay text": """\
from __future__ import annotations
count: int = 1
def f(x: Undefined) -> Undefined: ...
print(__annotations__, f.__annotations__)
""",
    "it reads what it is given": "import sys\nprint(sys.stdin.read().upper())\n",
    "it raises": "def f(x):\n    return 1 / x\n\nprint('before')\nf(0)\n",
    "it raises from another error": """\
try:
    {}["a"]
except KeyError as error:
    raise ValueError("b") from error
""",
    "a syntax error": "print('never')\nx = = 1\n",
    "an error of the compiler": "print('never')\nreturn 1\n",
    "a warning of the compiler": "print(1 is 1)\nprint('\\d')\n",
    "another encoding": "# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\n",
    "it exits with a number": "import sys\nsys.exit(7)\n",
    "it exits with a message": "import sys\nprint('out')\nsys.exit('it went wrong')\n",
    "it exits well": "import sys\nif __name__ == '__main__':\n    sys.exit()\n",
    "it leaves at once": "import os\nprint('kept', flush=True)\nprint('lost', end='')\nos._exit(5)\n",
    "it has a hook for its errors": """\
import sys, traceback
def shown(kind, error, tb):
    print("hook", kind.__name__, [frame.name for frame in traceback.extract_tb(tb)], error.__traceback__ is tb)
sys.excepthook = shown
raise KeyError("x")
""",
    "threads, and what is left for the end": """\
import atexit, threading, time
atexit.register(print, "at exit")
def work():
    time.sleep(0.2)
    print("thread")
threading.Thread(target=work).start()
print("end of the script")
""",
    "it kills itself": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n",
    "an interrupt that nobody catches": "import signal\nprint('a')\nsignal.raise_signal(signal.SIGINT)\nprint('b')\n",
    "a process of its own forks": """\
import os, sys
child = os.fork()
if not child:
    print("child")
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    "what it defines travels": """\
import dataclasses, pickle
@dataclasses.dataclass
class Point:
    x: int
print(pickle.loads(pickle.dumps(Point(1))))
""",
}

WITH_TORCH = {
    "a function that is called at the end": TORCH
    + """\
def step(x):
    return net(x) * 0.5 + x
@torch.no_grad()
def main():
    x = torch.ones(1, 8)
    for _ in range(20):
        x = step(x)
    print(x.sum().item(), torch.rand(1).item())
if __name__ == "__main__":
    main()
""",
    "it raises in a loop": TORCH
    + """\
def check(x, i):
    if i == 15:
        raise ValueError(f"stopped at {i}")
    return net(x)
with torch.no_grad():
    x = torch.ones(1, 8)
    for i in range(20):
        x = check(x, i)
""",
    "processes that are spawned": """\
import multiprocessing, sys
import torch
def work(number):
    return number * torch.ones(2).sum().item()
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [1, 2]), sys.argv)
""",
    "workers of a loader, forked and spawned": TORCH
    + """\
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.full((8,), float(index))
def main():
    for context in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(Numbers(), 2, num_workers=1, multiprocessing_context=context)
        with torch.no_grad():
            print([net(batch).sum().item() for batch in loader])
if __name__ == "__main__":
    main()
""",
}


FILES = ("--json", "r.json", "--html", "r.html", "--view", "v.html", "--trace", "t.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("value = 1\n")
    return tmp_path


def command(*words: str) -> list[str]:
    return [sys.executable, "-W", "default", *words]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"}


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), cwd=folder, env=environment(), input="text", capture_output=True, text=True, check=False
    )


def forked(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The same, where it is not about the start: torch and Grape have been imported."""
    return ran_forked(*words, cwd=folder, environment=environment_of() | {"COLUMNS": "100"})


def assert_same_as_plain(folder: Path, *words: str) -> str:
    """What Grape says of a script whose output, errors and exit code are otherwise those of the plain one."""
    plain, under = ran(folder, *words), ran(folder, "-m", "grape", *words)
    assert (under.stdout, under.returncode) == (plain.stdout, plain.returncode), under.stderr
    assert under.stderr.startswith(plain.stderr), under.stderr
    return under.stderr.removeprefix(plain.stderr)


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_a_script_runs_as_it_does_plainly(folder: Path, name: str) -> None:
    (folder / "script.py").write_text(WITHOUT_TORCH[name], encoding="latin-1" if "encoding" in name else None)
    said = assert_same_as_plain(folder, "script.py", "--json", "its own", "-v")
    ends_at_once = name in ("it leaves at once", "it kills itself")
    assert said == ("" if ends_at_once else "Grape: script.py: it loaded no PyTorch, so nothing was looked at\n")


@pytest.mark.parametrize("name", WITH_TORCH)
def test_a_script_with_torch_runs_as_it_does_plainly(folder: Path, name: str) -> None:
    (folder / "script.py").write_text(WITH_TORCH[name])
    said = assert_same_as_plain(folder, "script.py")
    assert said.startswith("\nGrape: script.py\n") and said.count("Grape: script.py") == 1


def test_a_link_in_another_folder_finds_what_is_beside_its_target(folder: Path) -> None:
    (folder / "script.py").write_text(WITHOUT_TORCH["modules beside it are found"])
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "link.py").symlink_to(folder / "script.py")
    assert_same_as_plain(folder, "elsewhere/link.py")


def test_the_report_is_written_and_shown(folder: Path) -> None:
    (folder / "script.py").write_text(WITH_TORCH["a function that is called at the end"])
    done = ran(folder, "-m", "grape", "run", "--engine", "regions", *FILES, "script.py")
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "r.json").read_text())
    assert report["verdict"] in done.stderr and report["verdict"] not in done.stdout
    assert report["cell"]["file"] == "script.py" and report["cell"]["engine"] == "regions"
    rows = {region["name"]: (region["calls"], region["file"], region["line"]) for region in report["regions"]}
    assert rows["step"] == (20, "script.py", 4)
    names = [event["args"] for event in json.loads((folder / "t.json").read_text())["traceEvents"]]
    assert any(str(one.get("name")).startswith("before: ") for one in names)
    assert 'id="grape-view"' in (folder / "v.html").read_text()
    page = (folder / "r.html").read_text()
    assert "<h2>script.py</h2>" in page and "def step(x):" in page
    assert sorted(file.name for file in folder.iterdir() if file.is_file()) == [
        "beside.py",
        "r.html",
        "r.json",
        "script.py",
        "t.json",
        "v.html",
    ]


def test_a_loop_at_the_top_is_a_region_as_in_a_cell(folder: Path) -> None:
    body = """\
h = torch.ones(1, 8)
with torch.no_grad():
    for _ in range(20):
        h = torch.tanh(h) @ net[0].weight
        h = h + 1
print(h.sum().item())
"""
    (folder / "script.py").write_text(TORCH + body)
    plain, done = ran(folder, "script.py"), ran(folder, "-m", "grape", "run", "--json", "r.json", "script.py")
    assert (done.stdout, done.returncode) == (plain.stdout, 0), done.stderr
    report = json.loads((folder / "r.json").read_text())
    assert [(region["name"], region["file"]) for region in report["regions"]] == [("loop at line 6", "script.py")]


def test_what_torch_reads_when_it_is_loaded_is_what_the_script_set(folder: Path) -> None:
    (folder / "script.py").write_text(
        "import os, sys\nassert 'torch' not in sys.modules\nos.environ['OMP_NUM_THREADS'] = '3'\n"
        + TORCH
        + "print(torch.get_num_threads())\n"
    )
    assert_same_as_plain(folder, "script.py")


def test_torch_may_be_loaded_inside_of_a_function(folder: Path) -> None:
    body = "".join(f"    {line}\n" for line in (TORCH + LOOP).splitlines())
    (folder / "script.py").write_text(f"def main():\n{body}\nif __name__ == '__main__':\n    main()\n")
    assert "main stays eager" in assert_same_as_plain(folder, "script.py")


def test_ctrl_c_ends_the_script_as_it_does_plainly(folder: Path) -> None:
    body = """\
x = torch.ones(1, 8)
print('here', flush=True)
with torch.no_grad():
    while True:
        x = net(x)
"""
    (folder / "script.py").write_text(TORCH + body)
    seen = []
    for words in (["script.py"], ["-m", "grape", "script.py"]):
        process = subprocess.Popen(
            command(*words), cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        trace, _, report = err.partition("\nGrape: script.py\n")
        files = re.findall(r'File "(.*?)", line \d+, in', trace)
        seen.append((process.returncode, files[0], trace.rstrip().splitlines()[-1]))
        assert not [file for file in files if file.startswith(str(ROOT / "grape"))]
        assert ("stopped by KeyboardInterrupt" in report) == (len(words) > 1)
    assert seen[0] == seen[1] == (-signal.SIGINT, str(folder / "script.py"), "KeyboardInterrupt")


def test_an_error_of_grapes_costs_the_report_and_not_the_script(folder: Path) -> None:
    broken = "from grape.sessions import Session\ndef fails(*_): raise RuntimeError('broken')\nSession.{} = fails\n"
    (folder / "script.py").write_text("import breaks_it\n" + TORCH + LOOP)
    (folder / "breaks_it.py").write_text("")
    plain = forked(folder, "script.py")
    for name, said in {"open": "could not start", "close": "no report"}.items():
        (folder / "breaks_it.py").write_text(broken.format(name))
        done = ran(folder, "-m", "grape", "run", "--json", "r.json", "script.py")
        assert (done.stdout, done.returncode) == (plain.stdout, 0)
        assert said in done.stderr and "RuntimeError: broken" in done.stderr
        assert "r.json not written: there is no report" in done.stderr and not (folder / "r.json").exists()


def test_fail_on_is_an_exit_code_of_a_script_that_ended_well(folder: Path) -> None:
    reads = TORCH + "x = torch.ones(1, 8)\ndef f(x):\n    return net(x) * x.sum().item()\nwith torch.no_grad():\n"
    reads += "    for _ in range(20):\n        f(x)\n"
    for end, code in {"": 1, "import sys\nsys.exit(0)\n": 1, "import sys\nsys.exit(4)\n": 4}.items():
        (folder / "script.py").write_text(reads + end)
        done = forked(folder, "-m", "grape", "run", "--fail-on", "costly", "script.py")
        assert done.returncode == code, done.stderr
        assert "grape: --fail-on costly: GR101 in script.py, line 6" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.py"], "cannot read 'missing.py': No such file or directory"),
        (["--cell", "1", "script.py"], "--cell is for notebooks, and 'script.py' is a script"),
        (["--rewrite", "script.py"], "--rewrite is for notebooks"),
        (["--json", "script.py", "script.py"], "'script.py' is the script itself"),
        (["--json", "no/r.json", "script.py"], "there is no folder 'no'"),
        (["--jsn", "r.json", "script.py"], "unknown option '--jsn'; did you mean --json?"),
        (["--view", "v.png", "script.py"], "cannot tell the format of 'v.png'; end its name in .html, or in .json"),
        (["--engine", "fast", "script.py"], "--engine is one of auto, regions, streams, not 'fast'"),
    ],
)
def test_what_cannot_be_run_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    (folder / "script.py").write_text("raise AssertionError('ran')\n")
    monkeypatch.chdir(folder)
    assert main(["run", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and message in err


def test_rewrites_of_a_script_go_into_a_copy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    body = "# -*- coding: latin-1 -*-\r\n" + TORCH.replace("\n", "\r\n") + "name = '\xe9'\r\nlosses = []\r\n"
    body += "x = torch.ones(1, 8)\r\nwith torch.no_grad():\r\n    for _ in range(20):\r\n        x = net(x)\r\n"
    body += "        losses.append(x.sum().item())\r\nprint(sum(losses))\r\n"
    script = folder / "script.py"
    script.write_bytes(body.encode("latin-1"))
    monkeypatch.chdir(folder)
    done = forked(folder, "-m", "grape", "run", "--json", "r.json", "script.py")
    assert "grape apply script.py --report r.json --unverified writes a copy" in " ".join(done.stderr.split())
    assert main(["apply", "script.py", "--report", "r.json"]) == 0
    assert "1 not verified, take them with --unverified" in capsys.readouterr().out
    assert main(["apply", "script.py", "--report", "r.json", "--unverified"]) == 0
    assert "wrote script.grape.py: script.py is as it was" in capsys.readouterr().out
    new = (folder / "script.grape.py").read_bytes()
    assert b"'\xe9'" in new and b".append(x.sum().detach().clone())\r\n" in new and new.count(b"\r") == new.count(b"\n")
    assert forked(folder, "script.grape.py").stdout == forked(folder, "script.py").stdout
    script.write_bytes(script.read_bytes() + b"# edited\r\n")
    assert main(["apply", "script.py", "--report", "r.json", "--unverified", "-o", "other.py"]) == 4
    assert "script.py was edited since the report" in capsys.readouterr().err
    assert main(["apply", "script.py"]) == 2
    assert "grape run --json script.json script.py writes one" in capsys.readouterr().err
