"""Random cells with loops over tensors and Python values, run as written and with their loops outlined.

After the cell every name has the value that it has after the plain cell, the same names share objects and memory, the
same was printed, the same exception came from the same lines, and the random stream stands where it stood.
"""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import random
import traceback
import types
from typing import Any

import torch

from grape.options import Options
from grape.sessions import Cell, Session, engine

__all__ = ["Outcome", "random_cell", "run_cell"]

SETUP = """
import torch
torch.manual_seed(3)
w = torch.randn(3, 3) * 0.5
a, b, c = torch.randn(2, 3), torch.randn(2, 3), torch.randn(2, 3)
net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()).requires_grad_(False)
items = [torch.randn(2, 3) for _ in range(24)]
log, info = [], {}
n = k = 0
scale = 0.5
class Box:
    def __init__(self, h):
        self.h, self.more, self.seen = h, [h * 2, h + 1], 0
    def push(self, x):
        self.h = torch.tanh(self.h + x)
        self.more = [self.more[1] * 0.5, x * 0.25]
    def count(self, x):
        self.seen += 1
        return x * 0.5
box = Box(a * 0.5)
twin = box
def pure(x):
    return torch.relu(x) * scale + 0.1
def reads_b(x):
    return x * 0.5 + b
def sets_c(x):
    global c
    c = x * 0.25
    return c + 1
def counts(x):
    info["calls"] = info.get("calls", 0) + 1
    return x * 0.5
def keeps(x):
    log.append(x)
    return torch.tanh(x)
def numbers(count):
    for number in range(count):
        yield number
        info["seen"] = number
"""
TENSORS = (
    "a = torch.tanh(a @ w) * 0.5",
    "b = torch.sigmoid(a + b)",
    "c = net(b) + a * 0.5",
    "a = pure(a) - b * 0.1",
    "b = reads_b(a) + c",
    "a = sets_c(b) * 0.5",
    "b = counts(a) + 1",
    "c = keeps(a) * 0.5",
    "a, b = b, a * 0.5 + 1",
    "a += b * 0.1",
    "a = a.clone()",
    "a.mul_(0.9).add_(0.01)",
    "b[0] = a[1] * 0.5",
    "e = torch.cat([a, b], 1)[:, :3]",
    "m = (a > 0).float().mean()",
    "a = a * m + 0.1",
    "c = a * n * 0.01 + b",
    "a = a + k * 0.001",
    "b = torch.rand(2, 3) + a * 0.1",
    "b = torch.where(a > c, a, c) * 0.5",
    "e = b.t().contiguous().t() + 1",
    "g = (h := a.sum()) * 0.1",
    "first, *others = a + 1, b * 2, c",
    "s = sum([t.sum() for t in (a, b)])",
    "parts = [a * q for q in (1, 2)]",
    "f = lambda z: z + a",
    "shape = tuple((a @ w).shape)",
    "u = a[:1] * 2; v = u + b",
    "a = v if n % 2 else a * 0.5 + 0.1",
    "for q in range(3): a = torch.tanh(a @ w) + 0.1",
    "for q, z in enumerate((a, b)): c = c * 0.5 + z * q",
    "pair = (a, b * 2)",
    "pair = {'a': a * 2, 'b': b}",
    "same = a; view = a[0]",
    "a = (a / (a.norm() + 1)).detach()",
    "assert a.shape == (2, 3)",
    "box.push(a)",
    "box.push(b * 0.5); a = a * 0.5 + box.h",
    "box.h = box.h * 0.9 + b * 0.1",
    "c = twin.more[1] + c * 0.5",
    "box.h.mul_(0.5).add_(0.01)",
    "b = box.count(a) + box.h",
    "a = box.h",
)
PYTHON = (
    "n += 1",
    "k = n * 2",
    "log.append(n)",
    "log.append(a)",
    "log.append(box.h)",
    "log.append(float(a.sum()))",
    "info[n % 3] = k",
    "print(n, k)",
    "total = m.item()",
    "name = f'{n} of {k}'",
    "scale = 0.5",
    "temporary = a + 1; del temporary",
    "r = f(b)",
    "low, high = min(n, k), max(n, k)",
    "import math; root = math.sqrt(n)",
)
BLOCKS = (
    "if n % 3 == 1:",
    "if n % 4 == 2:",
    "if a.sum() > 0:",
    "with torch.no_grad():",
    "with torch.inference_mode():",
    "with contextlib.suppress(ZeroDivisionError):",
    "for j in range(4):",
    "for j, z in zip((1, 2, 3), items):",
    "for j in range(n % 3):",
)
ENDS = (
    "if n > 14: break",
    "if n % 5 == 3: continue",
    "if n == 11: raise ValueError(n)",
    "if n == 9: a = a @ b",
    "n / 0",
)
HEADS = (
    "for i in range(22):",
    "for i, x in enumerate(items):",
    "for x, i in zip(items, numbers(24)):",
    "for i in numbers(22):",
    "while n < 20:",
    "while (n := n + 1) < 20:",
    "for (i, *rest) in zip(range(22), items, items):",
    "for n in range(1, 21):",
)


def random_cell(seed: int) -> str:
    """A cell with one loop, or two in a row, or a loop in a loop."""
    choice = random.Random(seed)
    lines = ["import contextlib"]
    for _ in range(1 if choice.random() < 0.85 else 2):
        lines += _loop(choice)
    return "\n".join([*lines, "print('done')"]) + "\n"


def random_function_cell(seed: int) -> str:
    """A cell with a function that holds one loop, and calls of it. What it raises, its own code catches."""
    choice = random.Random(seed)
    body = _loop(choice)
    names = sorted(
        {*"abcnkemghsuvrfiqzjx", "others", "first", "parts", "shape", "pair", "view", "total", "name", "root"}
    )
    unbound = [name for name in names if name not in "abcnk"]
    lines = [
        "import contextlib, math",
        "def work(a, b, c, n, k):",
        f"    {' = '.join(unbound)} = None",
        "    low = high = same = temporary = scale = j = rest = None",
        "    for _ in range(1):",
        "        try:",
        *["            " + line for line in body if "import" not in line and "del " not in line],
        "        except (ArithmeticError, AttributeError, RuntimeError, TypeError, ValueError) as error:",
        "            log.append((type(error).__name__, str(error)))",
        f"    return [{', '.join([*names, 'low', 'high', 'same', 'scale', 'j', 'rest'])}]",
        "results = []",
        "for call in range(4):",
        "    results.append(work(a.clone(), b.clone(), c.clone(), n, k))",
        "print('done')",
    ]
    return "\n".join(lines) + "\n"


def _loop(choice: random.Random) -> list[str]:
    head = choice.choice(HEADS)
    body = _block(choice, choice.randint(2, 6), 0)
    if head == "while n < 20:" or (choice.random() < 0.5 and "n" not in head.split()):
        body = ["n += 1", *body]  # first, so that no `continue` keeps the loop running
    if choice.random() < 0.25:
        body.insert(choice.randint(1, len(body)), choice.choice(ENDS))
    tail = ["else:", "    print('else', n)"] if choice.random() < 0.3 else []
    return [head, *["    " + line for line in body], *tail]


def _block(choice: random.Random, size: int, depth: int) -> list[str]:
    lines: list[str] = []
    for _ in range(size):
        kind = choice.random()
        if kind < 0.62:
            lines.append(choice.choice(TENSORS))
        elif kind < 0.86 or depth > 1:
            lines.append(choice.choice(PYTHON))
        else:
            lines += [
                choice.choice(BLOCKS),
                *["    " + line for line in _block(choice, choice.randint(1, 3), depth + 1)],
            ]
    return lines


class Outcome:
    """What one way of running a cell left."""

    def __init__(self, namespace: dict[str, Any], printed: str, error: BaseException | None) -> None:
        self.names = list(namespace)
        self.values = {name: _plain(value) for name, value in namespace.items()}
        self.printed = printed
        self.error = None if error is None else (type(error), str(error), _lines(error))
        box = namespace["box"]
        held = {**namespace, "box.h": box.h, "box.more[0]": box.more[0], "box.more[1]": box.more[1]}
        found = {name: value for name, value in held.items() if isinstance(value, torch.Tensor)}
        self.shared = {
            (one, other): (found[one] is found[other], _storage(found[one]) == _storage(found[other]))
            for one in found
            for other in found
            if one < other
        }
        self.random = torch.get_rng_state().tolist()


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _lines(error: BaseException) -> list[tuple[str, int | None, str]]:
    frames = traceback.extract_tb(error.__traceback__)
    return [(f.name, f.lineno, f.line or "") for f in frames if "torch" not in f.filename and f.filename != __file__]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        made = (type(value).__name__, str(value.dtype), value.is_inference())
        return (*made, tuple(value.shape), value.stride(), value.double().tolist())
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [_plain(item) for item in value])
    if isinstance(value, dict):
        return (type(value).__name__, [(key, _plain(item)) for key, item in value.items()])
    if isinstance(value, torch.nn.Module):
        return _plain(list(value.parameters()))
    if type(value).__name__ == "Box":
        return _plain(vars(value))
    if isinstance(value, (types.FunctionType, types.ModuleType, type)):
        return value.__name__
    return repr(value)


def run_cell(source: str, *, outline: bool, times: int) -> tuple[Outcome, int]:
    """Run the cell `times` times in one namespace; what it left, and how often an outlined region replayed."""
    filename = "<ipython-input-1-cell>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    linecache.cache["<ipython-input-0-setup>"] = (len(SETUP), None, SETUP.splitlines(keepends=True), "setup")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(SETUP, "<ipython-input-0-setup>", "exec"), namespace)
    printed, error, replays = io.StringIO(), None, 0
    for _ in range(times):
        session = Session(
            options=Options(), cell=Cell(name="In[1]", source=source, filename=filename), namespace=namespace
        )
        with contextlib.redirect_stdout(printed):
            if outline:
                session.open()
            try:
                for statement in ast.parse(source, filename).body:
                    tree = ast.Module([statement], [])
                    code = compile(tree, filename, "exec")
                    if outline:
                        session.statement_boundary()
                        code = engine().outliner.compile(tree, filename, "exec", 0, namespace) or code
                    exec(code, namespace)
                error = None
            except BaseException as raised:
                error = raised
        if outline:
            replays += sum(region.replays_in_run for region in engine().interceptor.outlined)
            session.abandon()
    namespace.pop("__builtins__", None)
    return Outcome(namespace, printed.getvalue(), error), replays
