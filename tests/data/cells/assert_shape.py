"""Checks of shapes and dtypes cost nothing."""
# near-miss: GR102
# %% setup
import torch
from torch import nn

net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).eval()

def denoise(x):
    assert x.shape[-1] == 8 and x.dtype == torch.float32
    y = x - 0.05 * net(x)
    if x.dim() == 2:
        y = y * 0.5
    return y
# %% cell
x = torch.randn(4, 8)
with torch.no_grad():
    for _ in range(16):
        x = denoise(x)
