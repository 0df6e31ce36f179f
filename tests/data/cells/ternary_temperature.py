"""A schedule that depends on a tensor through a conditional expression."""
# %% setup
import torch
from torch import nn

net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).eval()
# %% cell
x = torch.randn(4, 8)
with torch.no_grad():
    for _ in range(16):
        y = net(x)
        rate = 0.1 if y.abs().mean() > 0.2 else 0.05  # GR102
        x = x - rate * y
