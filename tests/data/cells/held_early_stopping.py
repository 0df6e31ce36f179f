"""Early stopping on a validation loss that was read as a number."""
# %% setup
import torch
from torch import nn

net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).eval()
validation = torch.randn(20, 32, 8)
# %% cell
best, patience = 1e9, 0
with torch.no_grad():
    for x in validation:
        loss = net(x).square().mean().item()  # GR101
        if loss < best:
            best, patience = loss, 0
        else:
            patience += 1
