"""The probe returns the activations; the loop stores them."""
# near-miss: GR404
# %% setup
import torch
from torch import nn

layer = nn.Linear(8, 8).eval()

def step(x):
    h = torch.relu(layer(x))
    return h * 0.5 + x, h
# %% cell
kept = []
x = torch.randn(2, 8)
with torch.no_grad():
    for _ in range(20):
        x, h = step(x)
        kept.append(h)
