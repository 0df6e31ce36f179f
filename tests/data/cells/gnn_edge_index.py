"""A graph layer over a fixed edge list."""
# near-miss: GR103
# %% setup
import torch
from torch import nn

lin = nn.Linear(8, 8).eval()

def message_pass(h, edges):
    source, target = edges
    messages = torch.relu(lin(h[source]))
    return torch.zeros_like(h).index_add(0, target, messages)
# %% cell
h = torch.randn(12, 8)
edges = torch.randint(0, 12, (2, 40))
with torch.no_grad():
    for _ in range(10):
        h = message_pass(h, edges)
