"""A GPU that is busy three quarters of the time: a graph still helps."""
# device: cuda
# near-miss: GR406 GR501
# regions: step
# launch-us: 8
# kernel-us: 8
# %% setup
import torch
from torch import nn

device = torch.device("cuda:0")
net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20))).to(device).eval()

def step(x):
    return net(x) * 0.5 + x

x = torch.zeros(8, 64, device=device)
# %% cell
with torch.no_grad():
    for _ in range(200):
        y = step(x)
