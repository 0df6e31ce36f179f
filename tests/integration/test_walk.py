"""Cells as a new user writes them: the results of the plain cell, and nothing said that is not so."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from jupyter_client.manager import start_new_kernel

from tests.integration.test_apply_magic import Kernel

pytestmark = pytest.mark.usefixtures("forked_kernels")

DECODE = (
    """\
import torch
torch.manual_seed(0)
class TinyLM(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(50, 32)
        self.rnn = torch.nn.GRUCell(32, 32)
        self.out = torch.nn.Linear(32, 50)
    def forward(self, tok, h):
        h = self.rnn(self.emb(tok), h)
        return self.out(h), h
lm, eos = TinyLM().eval(), 77
""",
    """\
tokens = [1]
h = torch.zeros(1, 32)
tok = torch.tensor([1])
with torch.no_grad():
    for _ in range(60):
        logits, h = lm(tok, h)
        tok = logits.argmax(-1)
        tokens.append(tok.item())
        if tok.item() == eos:
            break
""",
    "tokens, h.sum().item().hex()",
)
SAMPLE = (
    """\
import torch
torch.manual_seed(0)
head = torch.nn.Sequential(torch.nn.Embedding(40, 32), torch.nn.Linear(32, 40)).eval()
def sample(tok, temperature):
    logits = head(tok)
    return torch.multinomial(torch.softmax(logits / temperature, -1), 1).squeeze(-1)
""",
    """\
torch.manual_seed(1)
tok = torch.zeros(4, dtype=torch.long)
seq = [tok]
with torch.no_grad():
    for step in range(50):
        tok = sample(tok, max(0.5, 1.0 - step * 0.01))
        seq.append(tok)
""",
    "torch.stack(seq).tolist()",
)
TRAIN = (
    """\
import torch
torch.manual_seed(0)
X, Y = torch.randn(256, 16), torch.randint(0, 2, (256,))
net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
""",
    """\
history = []
for epoch in range(3):
    perm = torch.randperm(len(X))
    for i in range(0, len(X), 16):
        idx = perm[i:i + 16]
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(X[idx]), Y[idx])
        loss.backward()
        opt.step()
        history.append(loss.item())
""",
    "[v.hex() for v in history], [p.sum().item().hex() for p in net.parameters()]",
)
ROLLOUT = (
    """\
import torch
torch.manual_seed(0)
policy = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
def env_step(s, a):
    return [0.9 * v + (0.1 if a else -0.1) for v in s]
""",
    """\
obs, actions = [0.1, -0.2, 0.3, 0.0], []
with torch.no_grad():
    for t in range(40):
        dist = torch.distributions.Categorical(logits=policy(torch.tensor(obs)))
        action = dist.sample()
        actions.append(action.item())
        obs = env_step(obs, actions[-1])
""",
    "actions, obs",
)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        made = Kernel(client)
        made.run("%load_ext grape")
        yield made
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def walked(kernel: Kernel, walk: tuple[str, str, str]) -> str:
    """The report's text; the results were those of the plain cell."""
    setup, cell, result = walk
    results = []
    for magic in ("", "%%grape --no-widget -o report\n"):
        kernel.run("%grape reset")
        kernel.run(setup)
        assert kernel.run(magic + cell)[2] is None
        results.append(kernel.run(f"print({result})")[0])
    assert results[0] == results[1]
    kernel.run("text = report.to_text(width=160)")
    return " ".join(kernel.run("print(text)")[0].split())


def test_decoding_until_an_end_token(kernel: Kernel) -> None:
    said = walked(kernel, DECODE)
    assert (
        "`if tok.item() == eos` needs a tensor's value: the CPU would wait for a GPU at each of 60 executions fix"
        in said
    )
    assert "and drop what the iterations behind the last one added" in said


def test_sampling_with_a_temperature(kernel: Kernel) -> None:
    said = walked(kernel, SAMPLE)
    assert "args[" not in said
    assert "`max(0.5, 1.0 - step * 0.01)` is no tensor, and changes at each call" in said


def test_a_training_loop_with_indices(kernel: Kernel) -> None:
    said = walked(kernel, TRAIN)
    replayed = re.search(r"loop at line \d+(?: #\d+)? replayed", said)
    assert replayed is not None, said
    assert "; the rest of the loop replays" in said and "blocker" not in said


def test_a_rollout_with_a_distribution_of_torch(kernel: Kernel) -> None:
    said = walked(kernel, ROLLOUT)
    assert not re.search(r"`if` needs a tensor's value[^`]*, true", said), said
    assert "look for an option of `Distribution` that skips the check" in said
