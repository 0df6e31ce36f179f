"""Q-learning: a replay buffer of tensors, sampled by index."""
# near-miss: GR103 GR202
# %% setup
import torch
from torch import nn

q = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)).eval()
buffer = torch.randn(256, 4)
# %% cell
values = []
with torch.no_grad():
    for _ in range(20):
        index = torch.randint(0, 256, (32,))
        values.append(q(buffer[index]).max(-1).values)
