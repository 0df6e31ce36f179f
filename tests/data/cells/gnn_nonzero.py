"""A graph layer that finds the edges of a dense adjacency at each call."""
# %% setup
import torch
from torch import nn

lin = nn.Linear(8, 8).eval()

def message_pass(h, adjacency):
    source, target = adjacency.nonzero(as_tuple=True)  # GR103
    messages = torch.relu(lin(h[source]))
    return torch.zeros_like(h).index_add(0, target, messages)
# %% cell
h = torch.randn(12, 8)
adjacency = (torch.rand(12, 12) > 0.6).float()
with torch.no_grad():
    for _ in range(10):
        h = message_pass(h, adjacency)
