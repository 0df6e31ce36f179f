"""A loader whose last batch is smaller: one more shape, nothing to pad for."""
# near-miss: GR201
# %% setup
import torch
from torch import nn

net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).eval()
data = torch.randn(330, 8)
# %% cell
out = []
with torch.no_grad():
    for batch in data.split(16):
        out.append(net(batch))
