"""Diffusion: the step size is a Python number that changes at each call through a closure."""
# %% setup
import torch
from torch import nn

unet = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)).eval()
sigma = 1.0

def denoise(x):
    noise = unet(x)
    return x - noise * sigma * 0.1  # GR403
# %% cell
x = torch.randn(4, 16)
with torch.no_grad():
    for step in range(20):
        x = denoise(x)
        sigma = sigma * 0.9
