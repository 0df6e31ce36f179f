"""Dropout by hand with torch's random numbers."""
# near-miss: GR404
# %% setup
import torch

weights = torch.randn(16, 16) / 4

def perturb(x):
    scale = 0.9 + 0.2 * torch.rand(())
    h = torch.tanh(x @ weights)
    return h * scale
# %% cell
x = torch.randn(4, 16)
for _ in range(20):
    x = perturb(x)
