"""What rules say of lines that operator streams run as written: its cost there, no more and no less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from grape.advisor import advise
from grape.model import CellEvidence, Finding, Position, Stop, StreamEvidence
from grape.model.stream import READ
from tests.unit.test_streams_evidence import STREAM
from tests.unit.trace_builder import LIBRARY, at

OPTIMIZER = "/usr/lib/python3.11/site-packages/torch/optim/adam.py"
LOOP = "for x in data:\n    total += loss(x).item()\n"


def stop(
    name: str = "aten::_local_scalar_dense", reason: str = READ, *, line: int | None = 2, ms: float = 100.0, **more: Any
) -> Stop:
    """A hundred runs at that line of the cell, of `ms` in all."""
    user = at(line) if line is not None else None
    known = {"times": 100, "segments": 100, "user": user, "inner": user, **more}
    return Stop(operator=name, reason=reason, total_ns=round(ms * 1e6), **known)


def cell(*stops: Stop, source: str = LOOP, cuda: bool = True, wall_ms: float = 1000.0) -> CellEvidence:
    stream: StreamEvidence = replace(
        STREAM,
        reads=tuple(one for one in stops if one.reason == READ),
        stops=tuple(one for one in stops if one.reason != READ),
    )
    return CellEvidence(
        file="In[4]",
        source=source,
        device="NVIDIA H200" if cuda else "CPU",
        backend="cuda" if cuda else "tape",
        wall_ms=wall_ms,
        engine="streams",
        streams=(stream,),
        cuda=cuda,
    )


def only(evidence: CellEvidence) -> Finding:
    (finding,) = advise(evidence)
    return finding


# GR101


def test_a_read_costs_its_wait_and_a_segment() -> None:
    finding = only(cell(stop()))
    assert finding.message == (
        "`loss(x).item()` makes the CPU wait for the GPU at each execution (1 ms each); "
        "100 groups of launches end there"
    )
    assert (finding.code, finding.severity, finding.at, finding.region) == ("GR101", "costly", at(2), None)
    assert finding.predicted_ms_per_call == pytest.approx(1.0)
    assert finding.advice == "keep the value as a tensor (`loss(x).detach()`), and read it once after the loop"
    assert dict(finding.evidence)["executions_at_least"] == 100 and finding.fixable


def test_a_read_that_ends_no_segment_says_nothing_of_one() -> None:
    assert only(cell(stop(segments=0))).message.endswith("at each execution (1 ms each)")
    assert only(cell(stop(segments=1))).message.endswith("(1 ms each); 1 group of launches ends there")


@pytest.mark.parametrize(("ms", "severity"), [(10.0, "costly"), (9.9, "hint"), (1.0, "hint"), (0.99, None)])
def test_by_its_share_of_the_cell(ms: float, severity: str | None) -> None:
    assert [finding.severity for finding in advise(cell(stop(ms=ms)))] == ([severity] if severity else [])


def test_without_a_gpu_nothing_waited() -> None:
    finding = only(cell(stop(ms=0.001), cuda=False))
    assert finding.message.startswith("`loss(x).item()` would make the CPU wait for a GPU at each execution;")
    assert finding.predicted_ms_per_call is None


@pytest.mark.parametrize(
    "source",
    [
        "for i, x in enumerate(data):\n    if i % 10 == 0: total += loss(x).item()\n",
        "losses = [loss(x) for x in data]\nvalues = [one.item() for one in losses]\n",
        "x = data\ntotal = loss(x).item()\n",
    ],
    ids=["every n-th", "after the loop", "once"],
)
def test_what_the_code_follows_already(source: str) -> None:
    assert not advise(cell(stop(), source=source))


def test_a_copy_to_the_cpu() -> None:
    source = "for x in data:\n    kept.append(loss(x).cpu())\n"
    finding = only(cell(stop("aten::_to_copy"), source=source))
    assert finding.message.startswith("`loss(x).cpu()` makes the CPU wait for the GPU")
    assert finding.advice == "keep the tensor on the GPU; copy once after the loop"


def test_an_operator_that_only_returns_a_number_is_no_read() -> None:
    assert not advise(cell(stop("aten::_fused_sdp_choice")))


def test_printing() -> None:
    finding = only(cell(stop(), source="for x in data:\n    print(f'loss {loss(x)}')\n"))
    assert finding.advice is not None and finding.advice.startswith("print after the loop")


def test_a_read_in_a_library_is_not_the_persons_to_change() -> None:
    finding = only(cell(stop(inner=at(40, file=LIBRARY, function="mask")), source="for x in data:\n    y = net(x)\n"))
    assert "(in mask, somelib/masks.py, line 40)" in finding.message
    assert finding.advice is None and not finding.fixable


def test_the_scaler_reads_for_an_optimizer_whose_numbers_are_on_the_host() -> None:
    source = "opt = torch.optim.AdamW(net.parameters(), 1e-3)\nfor x in data:\n    scaler.step(opt)\n"
    inner = at(345, file="/usr/lib/python3.11/site-packages/torch/amp/grad_scaler.py", function="_maybe_opt_step")
    finding = only(cell(stop(line=3, inner=inner), source=source))
    assert finding.advice is not None
    assert finding.advice.startswith(
        "write `opt = torch.optim.AdamW(net.parameters(), 1e-3, fused=True)`: then the step"
    )


@pytest.mark.parametrize(
    ("line", "file", "said"),
    [
        ("    x = sampler.step(net(x, t), t, x)\n", LIBRARY, None),
        ("    loss(x).backward(); opt.step()\n", LIBRARY, None),
        ("    svi.step(x, y)\n", "/usr/lib/python3.11/site-packages/torch/distributions/normal.py", "keep the value"),
        ("    svi.step(x, y)\n", OPTIMIZER, "give the optimizer"),
    ],
)
def test_what_else_has_a_step_is_no_optimizer(line: str, file: str, said: str | None) -> None:
    source = f"opt = torch.optim.Adam(net.parameters())\nfor x in data:\n{line}"
    finding = only(cell(stop(line=3, inner=at(40, file=file, function="step")), source=source))
    assert finding.advice is None if said is None else str(finding.advice).startswith(said)


def test_step_counters_of_optimizers_are_on_the_cpu_also_where_there_is_a_gpu() -> None:
    read = stop(inner=at(90, file=OPTIMIZER, function="_get_value"))
    assert not advise(cell(read, source="for x in data:\n    opt.step()\n", cuda=False))


def test_of_many_reads_the_costliest() -> None:
    source = "for x in data:\n" + "".join(f"    a{n} += f(x).item()\n" for n in range(9))
    reads = [stop(line=2 + n, ms=100.0 - n) for n in range(9)]
    assert [finding.at.line for finding in advise(cell(*reads, source=source)) if finding.at] == [2, 3, 4, 5, 6]


def test_what_autograd_ran_on_a_thread_of_its_own_names_no_line() -> None:
    finding = only(cell(stop(line=None)))
    assert finding.at is None and finding.message.startswith("reading a value makes the CPU wait")


# GR102, GR103


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("if (x > 1).any(): break", "GR102", "`if (x > 1).any()` needs a tensor's value"),
        ("if loss(x).item() > 3: break", "GR102", "`if loss(x).item() > 3` needs a tensor's value"),
        ("assert x.isfinite().all()", "GR102", "`assert x.isfinite().all()` needs a tensor's value"),
        ("y = a if x.sum() > 0 else b", "GR102", "a conditional expression needs a tensor's value"),
        ("while f(x) > 1: x = g(x)", "GR102", "`while f(x) > 1` needs a tensor's value"),
        ("done = x.any() and y.any()", "GR102", "`x.any() and y.any()` needs a tensor's value"),
        ("y = f(x).item() if verbose else 0.0", "GR101", "`f(x).item()` makes the CPU wait"),
        ("y = float(f(x))", "GR101", "`float(f(x))` makes the CPU wait"),
        ("y = table[x]", "GR101", "the index of `table[x]` makes the CPU wait"),
    ],
)
def test_a_read_that_decides_is_told_from_one_that_does_not(line: str, code: str, words: str) -> None:
    finding = only(cell(stop(), source=f"for x in data:\n    {line}\n"))
    assert (finding.code, finding.message[: len(words)]) == (code, words)
    assert "(1 ms each)" in finding.message


@pytest.mark.parametrize(
    ("operator", "line", "subject"),
    [
        ("aten::nonzero", "y = torch.nonzero(x)", "`torch.nonzero(x)`"),
        ("aten::index", "y = x[x > 0]", "`x[x > 0]`"),
        ("aten::index_put_", "x[x > 0] = 0.0", "`x[x > 0]`"),
        ("aten::masked_select", "y = x.masked_select(m)", "`x.masked_select(m)`"),
        ("aten::_unique2", "y = f(x)", "`torch.unique`"),
        ("aten::repeat_interleave", "y = x.repeat_interleave(n)", "`x.repeat_interleave(n)`"),
    ],
)
def test_lengths_that_depend_on_data(operator: str, line: str, subject: str) -> None:
    finding = only(cell(stop(operator), source=f"for x in data:\n    {line}\n"))
    assert finding.code == "GR103"
    assert finding.message == (
        f"the output shape of {subject} depends on data: the CPU waits at each execution (1 ms each); "
        "100 groups of launches end there"
    )


# GR302, GR403, GR405


def changed(name: str, **more: Any) -> Stop:
    return stop(name, "number changed", **more)


def test_a_number_that_changes() -> None:
    finding = only(cell(changed("aten::mul"), source="for i in range(100):\n    x = x * 0.9**i\n"))
    assert finding.message == (
        "a Python number that reaches `mul` changes each time, so a stream runs it as written (1 ms each); "
        "100 groups of launches end there"
    )
    assert (finding.code, finding.severity, finding.at, finding.predicted_ms_per_call) == (
        "GR403",
        "costly",
        at(2),
        None,
    )
    assert finding.advice is not None and finding.advice.startswith("keep the number in a tensor on the device")
    assert dict(finding.evidence) == {"operators": ("aten::mul",), "executions_at_least": 100, "segments": 100}


ADAM = "opt = torch.optim.Adam(net.parameters())\nfor x in data:\n    opt.step()\n"


@pytest.mark.parametrize("cuda", [True, False])
def test_the_numbers_of_an_optimizer(cuda: bool) -> None:
    step = {"line": 3, "inner": at(790, file=OPTIMIZER, function="_multi_tensor_adam")}
    stops = changed("aten::_foreach_div_", **step), changed("aten::_foreach_addcdiv_", segments=0, **step)
    finding = only(cell(*stops, source=ADAM, cuda=cuda))
    each = " (1 ms each)" if cuda else ""
    assert finding.message == (
        f"a Python number that reaches `foreach_div_` and 1 operator more in `opt.step()` changes each time, "
        f"so a stream runs them as written{each}; 100 groups of launches end there"
    )
    assert finding.severity == ("costly" if cuda else "hint")
    assert finding.advice == (
        "write `opt = torch.optim.Adam(net.parameters(), fused=True)`: then the step keeps its numbers on the device "
        "and is issued with the rest; the last bits of the results change, so Grape does not switch it on; "
        'a learning rate that changes has to be `torch.tensor(..., device="cuda")`'
    )


def test_a_number_of_something_else_that_steps() -> None:
    inner = at(61, file="/usr/lib/python3.11/site-packages/torch/distributions/normal.py", function="log_prob")
    finding = only(cell(changed("aten::mul", line=2, inner=inner), source="for x in data:\n    svi.step(x, y)\n"))
    assert finding.message.startswith("a Python number that reaches `mul` changes each time")
    assert finding.advice is not None and finding.advice.startswith("keep the number in a tensor on the device")


def test_an_optimizer_that_has_its_numbers_on_the_device_lacks_a_rate_there() -> None:
    source = ADAM.replace("())", "(), fused=True)")
    finding = only(cell(changed("aten::_fused_adam_", line=3), source=source))
    assert finding.advice == 'a learning rate that changes has to be `torch.tensor(..., device="cuda")`'


def test_a_number_that_changes_in_a_library() -> None:
    inner = at(9, file=LIBRARY, function="scale")
    finding = only(cell(changed("aten::mul", inner=inner), source="for x in data:\n    y = net(x)\n"))
    assert "reaches `mul` (in scale, somelib/masks.py, line 9) changes each time" in finding.message
    assert finding.advice is None


@pytest.mark.parametrize(("ms", "severity"), [(10.0, "costly"), (9.9, "hint"), (1.0, "hint"), (0.99, None)])
def test_a_number_by_its_share_of_the_cell(ms: float, severity: str | None) -> None:
    found = advise(cell(changed("aten::mul", ms=ms)))
    assert [finding.severity for finding in found] == ([severity] if severity else [])


def test_a_tensor_in_cpu_memory() -> None:
    source = "for x in data:\n    place.copy_(x)\n"
    finding = only(cell(stop("aten::copy_", "a tensor on the CPU"), source=source))
    assert finding.message == (
        "`copy_` takes a tensor from the CPU's memory at each execution (1 ms each); 100 groups of launches end there"
    )
    assert (finding.code, finding.severity) == ("GR302", "costly")
    assert finding.advice == "move it to the GPU once before the loop, or pin it and copy with `non_blocking=True`"


@pytest.mark.parametrize(("ms", "found"), [(10.0, 1), (9.9, 0)])
def test_random_numbers_where_they_take_their_share(ms: float, found: int) -> None:
    drawn = [stop("aten::native_dropout", "random numbers", ms=ms)]
    findings = advise(cell(*drawn, source="for x in data:\n    y = drop(x)\n"))
    assert [(one.code, one.severity, one.advice) for one in findings] == [("GR405", "hint", None)] * found
    assert all(
        one.message == f"`native_dropout` runs as written ({ms / 100:.3g} ms each), for random numbers; "
        "100 groups of launches end there"
        for one in findings
    )
    assert not advise(cell(*drawn, cuda=False)), "on a CPU that says nothing of a GPU"


def test_memory_that_others_may_use() -> None:
    finding = only(cell(stop("aten::add", "memory that is not torch's alone")))
    assert (finding.code, finding.severity) == ("GR405", "costly")
    assert finding.advice == "give it memory that nobody but torch has: a copy (`.clone()`), made once"


@pytest.mark.parametrize("reason", ["checks its data", "integers on the CPU", "other aliases than recorded", "raised"])
def test_reasons_that_nobody_can_do_anything_about_are_no_findings(reason: str) -> None:
    assert not advise(cell(stop("aten::add", reason)))


def test_findings_are_ordered_by_what_they_cost() -> None:
    source = "for x in data:\n    a = f(x).item()\n    b = x * a\n    c = g(x).item()\n"
    found = advise(cell(stop(ms=20), changed("aten::mul", line=3, ms=300), stop(line=4, ms=200), source=source))
    assert [(one.code, one.at and one.at.line) for one in found] == [("GR101", 4), ("GR101", 2), ("GR403", 3)]


def test_a_cell_without_streams_has_none_of_this() -> None:
    assert not advise(replace(cell(stop()), streams=()))


# GR202


def test_sizes_that_grow() -> None:
    grows = stop("aten::cat", "sizes that grow")
    finding = only(cell(grows, source="for token in tokens:\n    cache = torch.cat([cache, token])\n"))
    assert finding.message == (
        "the sizes that `cat` is given grow, so a stream runs it as written (1 ms each); "
        "100 groups of launches end there"
    )
    assert (finding.code, finding.severity, finding.at) == ("GR202", "costly", grows.user)
    assert finding.advice is not None and finding.advice.startswith("allocate `cache` once")


@pytest.mark.parametrize(
    ("operator", "line", "name"),
    [
        ("aten::cat", "step = step + 1; cache = torch.cat([cache, token])", "`cache`"),
        ("aten::cat", "return torch.cat([cache, token])", "the state"),
        ("aten::bmm", "scores = query @ cache.mT", "the state"),
    ],
)
def test_what_grows_is_what_is_concatenated(operator: str, line: str, name: str) -> None:
    finding = only(cell(stop(operator, "sizes that grow"), source=f"def f(query):\n    {line}\n"))
    assert finding.advice is not None and finding.advice.startswith(f"allocate {name} once at its final length")


def test_sizes_that_grow_inside_of_generate() -> None:
    library = Position(file="/lib/python3.12/site-packages/transformers/cache_utils.py", line=9, function="update")
    grows = [replace(stop(f"aten::{name}", "sizes that grow"), inner=library) for name in ("cat", "index_select")]
    finding = only(
        cell(*grows, source="for prompt in prompts:\n    out.append(model.generate(prompt, use_cache=True))\n")
    )
    assert finding.message.startswith(
        "the sizes that `cat` and 1 operator more are given grow, so a stream runs them as"
    )
    assert finding.advice is not None and 'cache_implementation="static"' in finding.advice
