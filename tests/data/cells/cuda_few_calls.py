"""Small kernels, but only a handful of calls: the capture would not pay yet, which is no verdict on the graph."""
# device: cuda
# near-miss: GR406
# regions: step
# %% setup
import torch
from torch import nn

device = torch.device("cuda:0")
net = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64)).to(device).eval()

def step(x):  # GR501
    return x - 0.1 * net(x)

x = torch.zeros(8, 64, device=device)
# %% cell
with torch.no_grad():
    for _ in range(6):
        y = step(x)
