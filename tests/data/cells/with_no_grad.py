"""Validation under no_grad."""
# near-miss: GR405
# %% setup
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).eval()
batches = torch.randn(20, 16, 8)
# %% cell
outputs = []
with torch.no_grad():
    for batch in batches:
        outputs.append(model(batch))
