"""The rewriter of control flow: each construct three ways over its outcomes, exact output, refusals, line maps."""

from __future__ import annotations

import textwrap
import traceback
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grape.rewrite.control_flow import Declined, RewrittenFlow, rewrite_control_flow
from grape.runtime.backends.protocol import CaptureFailed
from grape.runtime.predication.lowering.select import SelectLowering

CPU = torch.device("cpu")


def source_of(body: str) -> str:
    return "def f(x, y, cell, n):\n" + textwrap.indent(body, "    ") + "\n"


def rewritten(source: str, **options: Any) -> RewrittenFlow:
    made = rewrite_control_flow(source, filename="cell", **options)
    assert isinstance(made, RewrittenFlow), made
    return made


def bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.flatten().view(torch.uint8).tolist()
    return tuple(map(bits, value)) if isinstance(value, tuple) else (type(value).__name__, value)


def outcome(source: str, values: list[float], *, select: bool) -> Any:
    namespace: dict[str, Any] = {"torch": torch}
    exec(source, namespace)
    x, y = torch.tensor(values), torch.tensor([0.5, -0.0, 2.0])
    cell = SimpleNamespace(state=torch.zeros(3), table={"k": torch.ones(3)}, memory=torch.zeros(3))
    if select:
        with SelectLowering(CPU).active():
            result = namespace["f"](x, y, cell, 3)
    else:
        result = namespace["f"](x, y, cell, 3)
    return bits(result), bits((x, y, cell.state, cell.table["k"], cell.memory))


def test_a_device_truth_value_is_never_taken_for_a_number() -> None:
    source = rewritten(source_of("z = not x[0]\nreturn y + int(z)")).source
    with pytest.raises(CaptureFailed, match="is used as a Python value"):
        outcome(source, [1.0, 1.0, 1.0], select=True)


AFTER = """\
from grape import flow as _flow
def f(x, y):
    # why
    def _then_3(y):  # when
        y = x + 1  # what
        return y
    y = _flow.branch(x.sum() > 0, _then_3, lambda y: y, (y,))
    return y
"""


def test_comments_and_formatting_stay() -> None:
    before = "def f(x, y):\n    # why\n    if x.sum() > 0:  # when\n        y = x + 1  # what\n    return y\n"
    made = rewritten(before)
    assert made.source == AFTER
    assert made.lines[:8] == (1, 1, 2, 3, 4, 3, 3, 5)


def test_a_loop_becomes_two_functions() -> None:
    made = rewritten("def f(x):\n    while x.sum() < 3:\n        x = x + 1\n    return x\n")
    assert made.source == (
        "from grape import flow as _flow\ndef f(x):\n    def _body_2(x):\n        x = x + 1\n        return x\n"
        "    x = _flow.loop(lambda x: x.sum() < 3, _body_2, (x,), (True,))\n    return x\n"
    )


def test_a_cell_keeps_its_global_names() -> None:
    cell = (
        "scale = 1\ndef g(v):\n    return v * scale\nif t > 0:\n    scale = 2\n    y = g(t)\n"
        "for i in r:\n    if i > t:\n        break\n"
    )
    for value in (1.0, -1.0):
        plain = {"t": torch.tensor(value), "y": torch.tensor(0.0), "r": [0, 1, 2]}
        mine = dict(plain)
        exec(cell, plain)
        exec(rewritten(cell).source, mine)
        assert bits(plain["y"]) == bits(mine["y"]) and plain["scale"] == mine["scale"] and plain["i"] == mine["i"]


PLAIN = {
    "none": ("if cell is None:\n    return 1\nreturn 2", 0),
    "shape": ("if x.shape[0] > 2:\n    return 1\nreturn 2", 0),
    "read on the host": ("if x.sum().item() > 2:\n    return 1\nreturn 2", 0),
    "a list from the host": ("if x.tolist():\n    return 1\nreturn 2", 0),
    "number": ("if n > 2:\n    return 'many'\nreturn 'few'", 1),
    "list": ("items = [] or [n]\nif items and n:\n    return items\nreturn None", 2),
    "unbound": (
        "if n > 5:\n    z = 1\ntry:\n    return z\nexcept NameError as error:\n    return type(error).__name__",
        1,
    ),
    "value of and": ("return n and 'text' or None", 2),
    "value of not": ("return not n", 1),
}


@pytest.mark.parametrize(("body", "constructs"), PLAIN.values(), ids=PLAIN.keys())
def test_plain_values_keep_their_meaning(body: str, constructs: int) -> None:
    source = source_of(body)
    made = rewritten(source)
    assert (len(made.constructs) > 0) == (constructs > 0)
    plain, mine = ({"torch": torch}, {"torch": torch})
    exec(source, plain)
    exec(made.source, mine)
    for n in (0, 3, 9):
        arguments = (torch.ones(3), torch.ones(3), None, n)
        assert mine["f"](*arguments) == plain["f"](*arguments)  # type: ignore[operator]


REFUSED = {
    "append": ("if x[0] > 0:\n    cell.append(x)", 2, "changes Python state"),
    "print": ("if x[0] > 0:\n    print(x)", 2, "has effects in Python"),
    "raise": ("if x[0] > 0:\n    raise ValueError", 2, "exceptions are control flow"),
    "try": ("if x[0] > 0:\n    try:\n        y = x\n    finally:\n        pass", 2, "exceptions are control flow"),
    "yield": ("while x[0] > 0:\n    yield x", 2, "suspended"),
    "del": ("if x[0] > 0:\n    del y", 2, "deletes a name"),
    "import": ("if x[0] > 0:\n    import math", 2, "import"),
    "global": ("global total\nif x[0] > 0:\n    total = x", 3, "declared global"),
    "logger": ("log = n\nif x[0] > 0:\n    log.info('x')", 3, "log in the body has effects"),
    "time": ("import time\nif x[0] > 0:\n    time.sleep(1)", 3, "time in the body has effects"),
    "closure": ("g = lambda: y\nif x[0] > 0:\n    y = x + g()", 3, "shared with a nested function"),
    "effect behind break": ("for i in n:\n    if x[0] > 0:\n        break\n    n.append(x)", 2, "changes Python state"),
}


@pytest.mark.parametrize(("body", "line", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_move_is_refused_with_line_and_reason(body: str, line: int, why: str) -> None:
    made = rewrite_control_flow(source_of(body), filename="cell")
    assert isinstance(made, Declined)
    assert made.line == line
    assert why in made.why


def test_what_cannot_move_stays_beside_what_can() -> None:
    made = rewritten(source_of("if x[0] > 0:\n    print(x)\nif x[1] > 0:\n    y = x\nreturn y"))
    assert "    if x[0] > 0:\n        print(x)\n" in made.source
    assert [(item.kind, item.line) for item in made.constructs] == [("if", 4)]
    assert [item.line for item in made.left] == [2]


def test_only_the_lines_that_are_asked_for() -> None:
    source = source_of("if x[0] > 0:\n    y = x\nif x[1] > 0:\n    y = -x\nreturn y")
    made = rewritten(source, only_lines=[4])
    assert [(item.kind, item.line) for item in made.constructs] == [("if", 4)]
    assert "    if x[0] > 0:\n        y = x\n" in made.source


def test_a_name_of_the_person_is_not_taken() -> None:
    made = rewrite_control_flow("_flow = 1\nif x > 0:\n    y = 2\n", filename="cell")
    assert isinstance(made, Declined) and "_flow" in made.why


def test_a_variable_that_is_called_like_a_module_is_no_module() -> None:
    made = rewritten(source_of("time = x * 2\nif x[0] > 0:\n    time = time.clamp(max=1)\nreturn time"))
    assert [item.kind for item in made.constructs] == ["if"]


def test_no_python_is_refused() -> None:
    made = rewrite_control_flow("x = 1\nif:\n", filename="cell")
    assert isinstance(made, Declined) and made.line == 2


def test_tracebacks_map_to_the_lines_of_the_person() -> None:
    source = source_of("if n > 0:\n    y = x\n    y = y + torch.zeros(\n        5)\nreturn y")
    made = rewritten(source)
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(made.source, "cell", "exec"), namespace)
    with pytest.raises(RuntimeError) as caught:
        namespace["f"](torch.ones(3), None, None, 1)
    frames = [frame for frame in traceback.extract_tb(caught.value.__traceback__) if frame.filename == "cell"]
    assert made.lines[(frames[-1].lineno or 0) - 1] == 4


def test_asserts_become_checks() -> None:
    source = source_of('assert x[0] > 0, "positive"\nreturn x + 1')
    made = rewritten(source)
    assert 'assert _flow.check(x[0] > 0, "positive"), "positive"' in made.source
    namespace: dict[str, Any] = {}
    exec(made.source, namespace)
    with pytest.raises(AssertionError, match="positive"):
        namespace["f"](torch.zeros(3), None, None, 0)
    lowering = SelectLowering(CPU)
    with lowering.active():
        namespace["f"](torch.zeros(3), None, None, 0)
    assert [check.text for check in lowering.checks if bool(check.failed)] == ["positive"]
