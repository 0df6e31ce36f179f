"""A progress print that shows only the step."""
# near-miss: GR101
# %% setup
import torch
from torch import nn

net = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 8)).eval()
# %% cell
x = torch.randn(4, 8)
with torch.no_grad():
    for t in range(16):
        x = x - 0.1 * net(x)
        print(f"step {t}, batch {x.shape[0]}")
