"""Diffusion: the time steps lie in a tensor."""
# near-miss: GR403
# %% setup
import torch
from torch import nn

unet = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)).eval()

def denoise(x, t):
    noise = unet(x + t / 100)
    return x - 0.05 * noise
# %% cell
x = torch.randn(4, 16)
timesteps = torch.arange(30.0)
with torch.no_grad():
    for i in range(30):
        x = denoise(x, timesteps[i])
