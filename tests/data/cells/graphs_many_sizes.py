"""Molecules of different sizes through a dense graph layer."""
# %% setup
import torch
from torch import nn

lin = nn.Linear(8, 8).eval()

def layer(h, adjacency):  # GR201
    h = adjacency @ torch.relu(lin(h))
    return h.sum(0)

counts = [5, 9, 12, 7, 17, 11, 6, 14, 8, 10, 13, 16]
molecules = [(torch.randn(n, 8), torch.ones(n, n) / n) for n in counts]
# %% cell
with torch.no_grad():
    energies = [layer(h, a) for h, a in molecules]
