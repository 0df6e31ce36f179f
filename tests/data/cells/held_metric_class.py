"""A metric object that sums on the device."""
# near-miss: GR101 GR404
# %% setup
import torch
from torch import nn

class Mean:
    def __init__(self):
        self.total, self.count = torch.zeros(()), 0

    def update(self, values):
        self.total += values.sum()
        self.count += values.numel()

    def compute(self):
        return (self.total / self.count).item()

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).eval()
# %% cell
metric = Mean()
with torch.inference_mode():
    for batch in torch.randn(24, 16, 8):
        metric.update(model(batch))
print(f"{metric.compute():.3f}")
