"""How much a cell is looked at: at first, when it runs again, and where nothing can be gained."""

from __future__ import annotations

import pkgutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import grape
from grape.outlining.loop import Loop
from grape.runtime.dispatch.module_regions import SHORT_LIVED
from grape.sessions import engine
from grape.sessions.prospect import Gain
from tests.integration.notebook import Notebook

SETUP = """
import torch
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
    def forward(self, x):
        return torch.tanh(self.b(torch.relu(self.a(x))))
net, x = Net().eval(), torch.randn(2, 8)
def step(x):
    return net(x) * 0.5 + x
def says(x):
    y = x * 2 + x.abs()
    print("said")
    return y - y.mean()
"""
SERVED = "%%grape\nwith torch.no_grad():\n    y = x\n    for _ in range(40):\n        y = step(y)\n"
REFUSED = "%%grape\nwith torch.no_grad():\n    y = x\n    for _ in range(40):\n        y = says(y)\n"


@pytest.fixture(autouse=True)
def regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they leave is served by streams otherwise (`test_auto_engine`)."""
    monkeypatch.setenv("GRAPE_ENGINE", "regions")


@pytest.fixture
def on_a_cpu(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    """Without the variable that has the reference serve."""
    monkeypatch.setattr(engine().context, "unhurried", False)
    monkeypatch.setattr(engine().context, "serves", False)
    return notebook


def plain() -> bool:
    """Whether nothing of the person's or of torch's is replaced."""
    stands = engine().interceptor._installed or engine().interceptor._functions._trampolines
    return torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl and not stands


def test_on_a_cpu_a_graph_is_checked_and_serves_nobody(on_a_cpu: Notebook) -> None:
    report = on_a_cpu.under_grape(SERVED)
    checked = [region for region in report["regions"] if region["verified"] == "identical"]
    assert [region["outcome"] for region in checked] == ["observed"]
    assert all(region["replays"] == 0 for region in report["regions"])
    assert engine().applied_count == 0
    assert plain()


def test_what_was_not_looked_at_is_not_counted(on_a_cpu: Notebook) -> None:
    """Looking may have an end at any moment: how often something ran is not known then."""
    on_a_cpu.shell.user_ns["aside"] = engine().stand_aside
    source = "%%grape\nwith torch.no_grad():\n    for i in range(40):\n        net(x).sum().item()\n"
    report = on_a_cpu.under_grape(f"{source}        if i == 5:\n            aside()\n")
    assert [(one["name"], one["calls"]) for one in report["regions"]] == [("Net (net)", 6)]
    assert "observed the first 6 calls of Net (net)" in report["verdict"]
    messages = [one["message"] for one in report["findings"] if one["code"] == "GR101"]
    assert messages and all("at each execution" in message for message in messages)


def test_on_a_cpu_the_second_run_is_the_plain_cell(on_a_cpu: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    first = on_a_cpu.under_grape(SERVED)
    code = on_a_cpu["step"].__code__
    monkeypatch.setattr(engine().interceptor, "install", _never)
    monkeypatch.setattr(engine().outliner, "compile", _never)
    again = on_a_cpu.under_grape(SERVED)
    assert on_a_cpu["step"].__code__ is code
    assert [region["name"] for region in again["regions"]] == [region["name"] for region in first["regions"]]
    assert again["cell"]["notes"] == [
        "looked at in run 1; since then it runs as written, for nothing in it gets faster; "
        "%grape reset has it looked at again"
    ]
    assert sum(again["cell"]["own_ms"][one] for one in ("record", "capture", "verify")) == 0


def test_a_cell_whose_code_changed_is_looked_at_again(on_a_cpu: Notebook) -> None:
    on_a_cpu.under_grape(SERVED)
    on_a_cpu.run("def step(x):\n    return net(x) * 0.25 + x\n").raise_error()
    report = on_a_cpu.under_grape(SERVED)
    assert report["cell"]["notes"] == []
    assert [region["verified"] for region in report["regions"]] == ["identical"]


def test_options_that_decide_what_is_applied_have_it_looked_at_again(notebook: Notebook) -> None:
    for _ in range(4):
        served = notebook.under_grape(SERVED)
    assert "its graphs serve it" in served["cell"]["notes"][0]
    starved = notebook.under_grape(SERVED.replace("%%grape", "%%grape --memory-budget 1"))
    assert starved["cell"]["notes"] == []
    assert "GR405" in [finding["code"] for finding in starved["findings"]]
    again = notebook.under_grape(SERVED)
    assert again["cell"]["notes"] == [] and "GR405" not in [finding["code"] for finding in again["findings"]]
    told = notebook.under_grape(SERVED.replace("%%grape", "%%grape --no-widget -o kept"))
    assert [region["outcome"] for region in told["regions"]] == ["replayed"]


def test_where_a_report_goes_does_not_have_it_looked_at_again(on_a_cpu: Notebook) -> None:
    on_a_cpu.under_grape(SERVED)
    told = on_a_cpu.under_grape(SERVED.replace("%%grape", "%%grape --no-widget -o kept"))
    assert told["cell"]["notes"][0].startswith("looked at in run 1;")
    assert grape.last is not None and grape.last.evidence.source.startswith("%%grape --no-widget -o kept\n")


def test_reset_has_it_looked_at_again(on_a_cpu: Notebook) -> None:
    on_a_cpu.under_grape(SERVED)
    engine().reset()
    assert on_a_cpu.under_grape(SERVED)["cell"]["notes"] == []


def test_a_cell_that_raised_is_looked_at_again(on_a_cpu: Notebook) -> None:
    on_a_cpu.under_grape("%%grape\nfail = False\n" + SERVED.partition("\n")[2])
    broken = "%%grape\nfor _ in range(40):\n    y = step(x)\nif stop:\n    raise ValueError(1)\n"
    on_a_cpu.run("stop = True").raise_error()
    with pytest.raises(ValueError, match="1"):
        on_a_cpu.under_grape(broken)
    on_a_cpu.run("stop = False").raise_error()
    assert on_a_cpu.under_grape(broken)["cell"]["notes"] == []


def test_findings_of_a_cell_that_is_left_alone_name_this_cell(on_a_cpu: Notebook) -> None:
    on_a_cpu.under_grape(REFUSED)
    cell = "%%grape\nwith torch.no_grad():\n    for _ in range(30):\n        y = net(x)\n        z = y.sum().item()\n"
    first, again = on_a_cpu.under_grape(cell), on_a_cpu.under_grape(cell)
    files = [{finding["file"] for finding in report["findings"]} for report in (first, again)]
    assert files[0] and files[0] == {first["cell"]["file"]}
    assert files[1] == {again["cell"]["file"]} != files[0]


def test_where_everything_is_refused_the_next_run_is_plain(notebook: Notebook) -> None:
    report = notebook.under_grape(REFUSED)
    assert {(region["outcome"], region["reason"]) for region in report["regions"]} == {("refused", "GR404")}
    assert plain()
    again = notebook.under_grape(REFUSED)
    assert again["cell"]["notes"][0].startswith("looked at in run 1; since then it runs as written")
    assert plain()


def test_what_replays_goes_on_from_the_first_iteration_and_is_looked_at_no_more(notebook: Notebook) -> None:
    for _ in range(2):
        notebook.under_grape(SERVED)
    for _ in range(3):
        report = notebook.under_grape(SERVED)
        assert [(region["calls"], region["replays"]) for region in report["regions"]] == [(40, 40)]
        assert sum(report["cell"]["own_ms"][one] for one in ("record", "capture", "verify")) == 0


def test_a_loop_of_the_cell_replays_from_its_first_iteration(notebook: Notebook) -> None:
    cell = "%%grape\nwith torch.no_grad():\n    y = x\n    for _ in range(40):\n        y = net(y) * 0.5 + y\n"
    for _ in range(2):
        notebook.under_grape(cell)
    report = notebook.under_grape(cell)
    assert [(region["calls"], region["replays"]) for region in report["regions"]] == [(40, 40)]


def test_a_model_that_was_made_anew_is_looked_at_again(notebook: Notebook) -> None:
    for _ in range(3):
        notebook.under_grape(SERVED)
    notebook.run("net = Net().eval()").raise_error()
    assert sum(region["replays"] for region in notebook.under_grape(SERVED)["regions"]) > 0


def test_who_takes_more_than_the_allowance_looks_no_further(
    on_a_cpu: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grape.sessions.cell.FIRST_MS", 0.0)
    monkeypatch.setattr("grape.sessions.cell.FIRST_SHARE", 1e-6)
    report = on_a_cpu.under_grape(SERVED)
    assert all(region["calls"] < 10 for region in report["regions"])
    assert plain()


def test_half_a_trace_says_nothing_about_a_region(on_a_cpu: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grape.sessions.cell.FIRST_MS", 0.0)
    monkeypatch.setattr("grape.sessions.cell.FIRST_SHARE", 0.0)
    monkeypatch.setattr("grape.runtime.regions.observer.FEWEST", 2)
    monkeypatch.setattr("grape.runtime.dispatch.active_region.ActiveRegion.enter", _unbounded)
    report = on_a_cpu.under_grape(SERVED)
    assert {region["outcome"] for region in report["regions"]} <= {"observed"}
    assert plain()


HOLDS = """
import sys
def holds(x):
    if (x.sum() - x.mean()).item() > 1e9:
        return x
    for _ in range(9):
        x = x + 1
    seen.append(sys.getprofile())
    y = net(x)
    seen.append(sys.getprofile())
    return y
seen = []
"""


COUNTS = """
import math, sys
def counts(x, n):
    global watch
    total = 0.0
    for i in range(n):
        total += math.cos(0.0)
    watch = sys.getprofile()
    return x + total
"""


def test_a_call_that_is_recorded_no_further_is_watched_no_further(
    on_a_cpu: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first operators make way for what it calls; more come before that is called."""
    monkeypatch.setattr("grape.sessions.cell.FIRST_MS", 1.0)
    monkeypatch.setattr("grape.sessions.cell.FIRST_SHARE", 0.0)
    monkeypatch.setattr("grape.runtime.accounts.attention.TRACED_OPERATOR_MS", 0.2)
    monkeypatch.setattr("grape.runtime.dispatch.active_region.ActiveRegion.enter", _unbounded)
    monkeypatch.setattr(engine().context.attention, "operator_ms", 0.2)
    write = print
    on_a_cpu.run(HOLDS).raise_error()
    on_a_cpu.under_grape("%%grape\ny = holds(x)\n")
    assert on_a_cpu["seen"] == [None, None]
    assert print is write


@pytest.mark.parametrize(("passed_ns", "ends"), [(4_000, False), (40_000_000, True)])
def test_a_call_whose_operators_take_longer_to_record_than_expected_is_recorded_no_further(
    on_a_cpu: Notebook, monkeypatch: pytest.MonkeyPatch, passed_ns: int, ends: bool
) -> None:
    """How long they take is known only once some were recorded."""
    monkeypatch.setattr("grape.tracing.tracer._PASSED_NS", passed_ns)
    monkeypatch.setattr("grape.sessions.cell.FIRST_MS", 1000.0)
    monkeypatch.setattr(engine().context.attention, "operator_ms", 0.03)  # it is measured here
    monkeypatch.setattr("grape.runtime.dispatch.active_region.ActiveRegion.enter", _unbounded)
    on_a_cpu.run("def much(x):\n    for _ in range(200):\n        x = x + 1\n    return x").raise_error()
    on_a_cpu.under_grape("%%grape\ny = much(x)\n")
    assert engine().context.attention.denied == ends
    assert engine().context.tracer.recorded_ns < 3e9 + 200 * passed_ns * (not ends)


@pytest.mark.parametrize("rounds", [100, 100_000])
def test_a_call_with_much_python_in_it_is_watched_within_the_allowance(
    on_a_cpu: Notebook, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    monkeypatch.setattr("grape.sessions.cell.FIRST_MS", 2.0)
    monkeypatch.setattr("grape.sessions.cell.FIRST_SHARE", 0.0)
    monkeypatch.setattr("grape.runtime.dispatch.active_region.ActiveRegion.enter", _unbounded)
    on_a_cpu.run(COUNTS).raise_error()
    report = on_a_cpu.under_grape(f"%%grape\ny = counts(x, {rounds})\n")
    assert (on_a_cpu["watch"] is None) == (rounds > 10_000)
    assert [region["outcome"] for region in report["regions"]] == ["observed" if rounds > 10_000 else "refused"]
    assert plain() and on_a_cpu["y"].equal(on_a_cpu["x"] + rounds)


def test_modules_that_are_made_anew_in_each_call_are_let_be(notebook: Notebook) -> None:
    cell = "%%grape\nfor _ in range(60):\n    y = Net()(x)\n"
    notebook.under_grape(cell)
    regions = engine().interceptor.regions
    assert len([region for region in regions if region.root_is_module]) <= SHORT_LIVED + 2


TRAINING = """%%grape
for _ in range(24):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
"""


def test_what_a_loop_was_divided_for_is_told_in_each_run(notebook: Notebook) -> None:
    notebook.run("optimizer = torch.optim.Adam(net.parameters(), lr=0.01)").raise_error()
    reports = [notebook.under_grape(TRAINING) for _ in range(4)]
    for number, report in enumerate(reports):
        (finding,) = [one for one in report["findings"] if one["code"] == "GR403"]
        assert (finding["file"], finding["line"]) == (report["cell"]["file"], 6), number
        assert finding["message"].startswith("`loop at line 2` stays eager")
        apart, rest = (one for one in report["regions"] if one["name"].startswith("loop at line 2"))
        assert (apart["outcome"], apart["reason"], apart["calls"]) == ("refused", "GR403", 0 if number else 1)
        assert (rest["name"], rest["outcome"]) == ("loop at line 2 #2", "replayed")
    notebook.run("optimizer = torch.optim.SGD(net.parameters(), lr=0.01)").raise_error()
    assert not [one for one in notebook.under_grape(TRAINING)["findings"] if one["code"] == "GR403"]


def test_what_is_told_again_of_a_divided_loop_names_the_cell_as_it_is_called_now(notebook: Notebook) -> None:
    notebook.run("optimizer = torch.optim.SGD(net.parameters(), lr=0.01)").raise_error()
    picked = TRAINING.replace("_ in", "i in").replace(
        "    optimizer.zero", "    row = x[[i % 2]]\n    optimizer.zero", 1
    )
    picked = picked.replace("net(x)", "net(row)")
    for _ in range(3):
        report = notebook.under_grape(picked)
        (sent,) = [one for one in report["findings"] if one["code"] == "GR401"]
        assert (sent["file"], sent["line"]) == (report["cell"]["file"], 3)


def test_a_loop_stays_divided_whatever_the_magic_asks_for(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("optimizer = torch.optim.Adam(net.parameters(), lr=0.01)").raise_error()
    for number in range(3):
        report = notebook.under_grape(TRAINING.replace("%%grape", f"%%grape --json {tmp_path / str(number)}.json"))
        apart, rest = (one for one in report["regions"] if one["name"].startswith("loop at line 2"))
        assert (apart["outcome"], apart["calls"]) == ("refused", 0 if number else 1)
    assert rest["calls"] == rest["replays"] > 0


def _late(call: Any, by_s: float) -> Any:
    def slowly(*args: Any, **kwargs: Any) -> Any:
        time.sleep(by_s)
        return call(*args, **kwargs)

    return slowly


LOOP = "%%grape\nwith torch.no_grad():\n    y = x\n    for _ in range(9):\n        y = torch.tanh(y) * 2 + x\n"


def test_what_comes_before_the_first_statement_is_grapes_own(
    on_a_cpu: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grape.sessions.plan", _late(pkgutil.resolve_name("grape.sessions:plan"), 0.2))
    monkeypatch.setattr(engine().outliner, "compile", _late(engine().outliner.compile, 0.2))
    cell = on_a_cpu.under_grape(LOOP)["cell"]
    assert cell["own_ms"]["observe"] >= 400
    assert cell["plain_ms"] <= cell["wall_ms"] - 400


def test_what_is_made_for_a_loop_is_grapes_own(on_a_cpu: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (
        "grape.outlining.run.divide",
        "grape.outlining.parts.pure_code",
        "grape.outlining.parts.eager_code",
    ):
        monkeypatch.setattr(function, _late(pkgutil.resolve_name(function), 0.2))
    cell = on_a_cpu.under_grape(LOOP)["cell"]
    assert cell["own_ms"]["observe"] >= 600
    assert cell["plain_ms"] <= cell["wall_ms"] - 600


def _never(*_: object, **__: object) -> None:
    raise AssertionError("a cell that is left alone is left alone")


def _unbounded(self: Any, region: Any, args: Any, kwargs: Any, since: Any = None) -> Any:
    return self._enter(region, args, kwargs)


def test_graphs_that_save_too_little_of_the_cell_go(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine(), "gain_of", lambda replayed: Gain(made_ms=0.0))

    def looking_ms(report: Any) -> float:
        return sum(report["cell"]["own_ms"][one] for one in ("observe", "record", "capture", "verify"))

    first = notebook.under_grape(SERVED)
    assert engine().applied_count == 1  # a first run tells too little
    notebook.under_grape(SERVED)
    assert engine().applied_count == 0 and plain()
    third = notebook.under_grape(SERVED)
    assert "graphs would save 0% of the cell" in third["cell"]["notes"][0]
    assert looking_ms(third) < 0.2 * looking_ms(first)
    assert plain()


def test_graphs_that_are_worth_it_in_another_cell_stay(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    other = SERVED.replace("range(40)", "range(50)")
    for _ in range(3):
        notebook.under_grape(other)
    monkeypatch.setattr(engine(), "gain_of", lambda replayed: Gain(made_ms=0.0))
    for _ in range(2):
        notebook.under_grape(SERVED)
    assert engine().applied_count == 1
    report = notebook.under_grape(other)
    assert [(region["calls"], region["replays"]) for region in report["regions"]] == [(50, 50)]


def test_a_with_block_has_no_allowance(on_a_cpu: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    """No later run would go on with what the first learned."""
    monkeypatch.setattr("grape.sessions.cell.FIRST_MS", 0.0)
    monkeypatch.setattr("grape.sessions.cell.FIRST_SHARE", 1e-6)
    block = "import grape\nwith grape.session():\n" + SERVED.partition("\n")[2].replace("with", "    with").replace(
        "\n    ", "\n        "
    )
    report = on_a_cpu.under_grape(block)
    assert [region["calls"] for region in report["regions"]] == [40]
    assert [region["verified"] for region in report["regions"]] == ["identical"]


def test_a_cell_of_which_nothing_was_seen_is_looked_at_again(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine().context, "unhurried", False)
    monkeypatch.setattr("grape.sessions.cell.FIRST_MS", 1e-3)
    monkeypatch.setattr("grape.sessions.cell.FIRST_SHARE", 0.0)
    assert sum(region["replays"] for region in notebook.under_grape(SERVED)["regions"]) == 0
    second = notebook.under_grape(SERVED)
    assert second["cell"]["notes"] == [] and sum(region["replays"] for region in second["regions"]) > 0


def test_the_text_of_a_cell_that_is_looked_at_no_more_is_brief(on_a_cpu: Notebook) -> None:
    shown = []
    for _ in range(2):
        with capture_output() as captured:
            InteractiveShell.instance().run_cell(REFUSED)
        assert grape.last is not None
        texts = [one.data.get("text/plain", "") for one in captured.outputs]
        shown.append(next(text for text in texts if text.startswith(grape.last.verdict)))
    assert shown[0].count("\n") > 5
    lines = shown[1].split("\n")
    assert lines[0] == grape.last.verdict and lines[1].startswith("note: looked at in run 1")
    assert lines[2:] == ["the whole report: import grape; print(grape.last)"]


def test_of_a_cell_that_is_looked_at_no_more_nothing_is_promised(on_a_cpu: Notebook) -> None:
    """Such as that what was observed is accelerated when it is called again."""
    told = []
    for _ in range(2):
        on_a_cpu.under_grape(REFUSED)
        assert grape.last is not None
        told.append(grape.last.evidence.given_up)
    assert told == [None, "nothing in it gets faster"]


def test_a_cell_that_raised_gives_nothing_up(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of later runs holds for them: they look again."""
    monkeypatch.setattr(engine(), "gain_of", lambda replayed: Gain(made_ms=0.0))
    raises = SERVED + "if stop:\n    raise ValueError(1)\n"
    notebook.run("stop = []").raise_error()
    notebook.under_grape(raises)
    notebook.run("stop.append(1)").raise_error()  # no flag: the cell is the same one
    with pytest.raises(ValueError, match="1"):
        notebook.under_grape(raises)
    assert grape.last is not None and grape.last.evidence.given_up is None
    assert engine().applied_count == 1


LOOP_IN_A_FUNCTION = """
def rounds(x, n):
    with torch.no_grad():
        for _ in range(n):
            x = torch.tanh(x * 0.5 + 1) - x.abs()
            x = x / (1 + x.square().mean())
    return x
"""
ROUNDS = "%%grape\nz = rounds(x, 40)\n"


def test_loops_of_functions_go_on_after_a_cell_that_was_left_to_itself(notebook: Notebook) -> None:
    notebook.run(LOOP_IN_A_FUNCTION).raise_error()

    def replays() -> int:
        return sum(region["replays"] for region in notebook.under_grape(ROUNDS)["regions"])

    notebook.under_grape(ROUNDS)
    assert replays() > 20
    notebook.under_grape("%%grape\nimport sys\nsys.setprofile(None)\nz = rounds(x, 40)\n")
    assert replays() > 20
    notebook.run(ROUNDS.removeprefix("%%grape\n")).raise_error()
    assert replays() > 20


def test_modules_in_which_nothing_replays_are_let_alone_in_cells_that_nobody_observes(notebook: Notebook) -> None:
    """Whether they were refused, or were seen too seldom: here by one call in each run."""
    notebook.run("once = Net().eval()\n").raise_error()
    both = SERVED + "    w = once(x)\n"
    for _ in range(2):
        notebook.under_grape(both)
    by_name = {region.name: region for region in engine().interceptor.regions}
    seldom = next(region for name, region in by_name.items() if "once" in name)
    assert seldom.refused is None and not seldom.entries
    before, replayed = seldom.calls, sum(region.replays for region in by_name.values())
    notebook.run(SERVED.removeprefix("%%grape\n") + "    for _ in range(50):\n        w = once(x)\n").raise_error()
    assert seldom.calls == before
    assert sum(region.replays for region in by_name.values()) > replayed


def test_loops_in_which_nothing_replays_are_entered_once_in_a_cell_that_is_served(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    nest = "for i in range(50):\n    j = 0\n    while j < 3:\n        j = max(j, j + 1)\n"
    for _ in range(2):
        notebook.under_grape(SERVED + nest)
    entered: list[bool] = []
    stays = Loop.stays

    def counted(loop: Loop) -> bool:
        entered.append(stays(loop))
        return entered[-1]

    monkeypatch.setattr(Loop, "stays", counted)
    report = notebook.under_grape(SERVED + nest)
    assert grape.last is not None and "its graphs serve it" in grape.last.evidence.notes[0]
    assert entered == [False] and notebook["j"] == 3
    assert sum(region["replays"] for region in report["regions"]) > 20
