"""Dropout by hand with Python's random numbers."""
# %% setup
import random
import torch

weights = torch.randn(16, 16) / 4

def perturb(x):
    scale = random.uniform(0.9, 1.1)  # GR404
    h = torch.tanh(x @ weights)
    return h * scale
# %% cell
x = torch.randn(4, 16)
for _ in range(20):
    x = perturb(x)
