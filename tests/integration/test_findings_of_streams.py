"""What is said of lines that operator streams run as written, in cells on the CPU."""

from __future__ import annotations

import torch
import torch._dynamo  # noqa: F401  optimizers import it, and it wraps functions of torch for good

from tests.integration.notebook import Notebook
from tests.property.stream_programs import needs_compiler

pytestmark = needs_compiler

SETUP = """
import torch
torch.manual_seed(0)
net, x = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8)), torch.randn(2, 8)
optimizer = torch.optim.Adam(net.parameters(), foreach=True)
def forward():
    return (net(x) - x).pow(2).mean()
"""
TRAIN = """%%grape --engine streams
losses, total = [], 0.0
for i in range(60):
    optimizer.zero_grad()
    loss = forward()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    h = x * 0.9**i
    h[h > 0] = 0.0
"""


def test_try(notebook: Notebook) -> None:
    for _ in range(2):
        report = notebook.under_grape(TRAIN)
        print(notebook.said)
        import json

        print(json.dumps(report["streams"][0]["reads"], indent=1), json.dumps(report["streams"][0]["stops"], indent=1))
        print(json.dumps(report["findings"], indent=1))
    import grape

    print(grape.last.with_fixes().to_text())
    assert 0
