"""Evaluation with very large batches: the device limits it."""
# device: cuda
# near-miss: GR501
# regions: model
# kernel-us: 1500
# %% setup
import torch
from torch import nn

device = torch.device("cuda:0")
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).to(device).eval()
data = torch.zeros(24, 8192, 1024, device=device)
# %% cell
outputs = []
with torch.no_grad():
    for batch in data:
        outputs.append(model(batch).mean())  # GR406
