"""A sanity check in the hot function."""
# %% setup
import torch
from torch import nn

net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).eval()

def denoise(x):
    y = x - 0.05 * net(x)
    assert torch.isfinite(y).all(), "diverged"  # GR102
    return y
# %% cell
x = torch.randn(4, 8)
with torch.no_grad():
    for _ in range(16):
        x = denoise(x)
