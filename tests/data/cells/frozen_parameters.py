"""A frozen model outside of no_grad: nothing asks for gradients."""
# near-miss: GR405
# %% setup
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).eval().requires_grad_(False)
batches = torch.randn(20, 16, 8)
# %% cell
outputs = []
for batch in batches:
    outputs.append(model(batch))
