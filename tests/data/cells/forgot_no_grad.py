"""Validation without no_grad: every call records gradients for nothing."""
# %% setup
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).eval()
batches = torch.randn(20, 16, 8)
# %% cell
outputs = []
for batch in batches:
    outputs.append(model(batch).detach())  # GR405
