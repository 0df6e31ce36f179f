"""A hand-written layer that clips by a value it reads."""
# %% setup
import torch
from torch import nn

layer = nn.Linear(16, 16)

def normalize(x):
    h = torch.tanh(layer(x))
    scale = h.abs().max().item()  # GR101
    return h / (scale + 1e-6)

def step(x):
    return normalize(x) * 0.5 + x
# %% cell
x = torch.randn(4, 16)
with torch.no_grad():
    for _ in range(20):
        x = step(x)
