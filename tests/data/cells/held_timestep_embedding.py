"""Diffusion: the guidance strength follows a cosine of the Python step."""
# %% setup
import math
import torch
from torch import nn

unet = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)).eval()

def guided(x, strength):  # GR403
    plain, other = unet(x), unet(-x)
    return x - 0.05 * (plain + strength * (other - plain))
# %% cell
x = torch.randn(4, 16)
with torch.no_grad():
    for step in range(30):
        x = guided(x, math.cos(step / 30))
