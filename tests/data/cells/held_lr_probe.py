"""A probe of activations with a forward hook that appends to a list."""
# %% setup
import torch
from torch import nn

net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).eval()
norms = []

def measure(x):
    h = net[1](net[0](x))
    norms.append(h.norm())  # GR404
    return net[2](h)
# %% cell
x = torch.randn(4, 8)
with torch.no_grad():
    for _ in range(20):
        x = measure(x)
