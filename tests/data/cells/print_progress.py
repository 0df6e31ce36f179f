"""Sampling with a progress print of a tensor at each step."""
# %% setup
import torch
from torch import nn

net = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 8)).eval()
# %% cell
x = torch.randn(4, 8)
with torch.no_grad():
    for t in range(16):
        x = x - 0.1 * net(x)
        print("norm", x.norm())  # GR101
