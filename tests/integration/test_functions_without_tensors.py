"""Functions of a notebook that do no work of PyTorch's: nothing is said of what keeps them from being graphs."""

from __future__ import annotations

from grape.runtime.regions.workless import reaches_no_tensor
from tests.integration.notebook import Notebook

SETUP = """
import math, random
from collections import deque
import numpy as np
import torch
torch.manual_seed(0); random.seed(0); np.random.seed(0)
net = torch.nn.Linear(4, 2)

class Replay:
    def __init__(self):
        self.buffer = deque(maxlen=64)
    def push(self, state, reward):
        self.buffer.append((np.expand_dims(state, 0), reward))
    def sample(self, n):
        state, reward = zip(*random.sample(self.buffer, n))
        return np.concatenate(state), reward

class Pole:
    def reset(self):
        self.state = np.random.uniform(-0.05, 0.05, 4)
        return self.state
    def step(self, action):
        a, b, c, d = self.state
        self.state = np.array([a + b, b + action, c + d, d + math.sin(c)])
        return self.state, 1.0

def act(state):
    with torch.no_grad():
        return net(torch.as_tensor(state, dtype=torch.float32)).argmax().item()

class Batches:
    def __init__(self):
        self.kept = [np.zeros((2, 4))]
    def encode(self):
        return torch.from_numpy(self.kept[0]).float() + 1
    def other(self):
        return self.encode()

class Hidden:
    def __init__(self):
        self.data, self.kept = deque([torch.ones(4)]), np.zeros(4)
    def add(self, n):
        return self.data[0] + n

class Ordered:
    def __init__(self):
        self.kept = np.zeros(4)
    def __add__(self, other):
        return act(self.kept) + other
    def twice(self):
        return self + 1
    def named(self):
        return getattr(self, "twice")()
    def late(self):
        from torch import ones
        return ones(2)

def unbound():
    def add(n):
        return weights + n if n else later
    weights = torch.ones(4)
    return add
    later = 1
"""

EPISODE = """%%grape
replay, pole, total = Replay(), Pole(), 0.0
state = pole.reset()
for frame in range(40):
    action = act(state)
    state, reward = pole.step(action)
    replay.push(state, reward)
    if len(replay.buffer) > 8:
        states, rewards = replay.sample(4)
        total += net(torch.as_tensor(states, dtype=torch.float32)).sum().item()
"""


def test_the_report_does_not_blame_an_environment_or_a_buffer(notebook: Notebook) -> None:
    for _ in range(2):
        report = notebook.under_grape(EPISODE)
        said = [*(finding["message"] for finding in report["findings"]), report["verdict"]]
        blamed = ("Pole.step", "Pole.reset", "Replay.push", "Replay.sample")
        assert not [text for text in said if any(name in text for name in blamed)]


def test_what_has_tensors_to_work_on_is_told_of(notebook: Notebook) -> None:
    def nothing(call: str, *args: str) -> bool:
        function, values = eval(call, notebook.shell.user_ns), [eval(one, notebook.shell.user_ns) for one in args]
        return reaches_no_tensor(function, tuple(values), {})

    assert nothing("Replay.push", "Replay()", "np.zeros(4)", "1.0")
    assert nothing("Replay.sample", "Replay()", "4")
    assert nothing("Pole.step", "Pole()", "1")
    assert not nothing("act", "np.zeros(4)")
    assert not nothing("Batches.encode", "Batches()")
    assert not nothing("Batches.other", "Batches()")  # by a method that it calls
    assert not nothing("Hidden.add", "Hidden()", "1")  # in what it holds
    assert not nothing("Ordered.twice", "Ordered()")  # by an operator
    assert not nothing("Ordered.named", "Ordered()")
    assert not nothing("Ordered.late", "Ordered()")
    assert not nothing("Replay.push", "Replay()", "torch.ones(4)", "1.0")
    assert not nothing("Replay.push", "Replay()", "iter([torch.ones(4)])", "1.0")
    assert not nothing("unbound()", "1")  # beside a name that is bound to nothing yet
    assert not nothing("net")
