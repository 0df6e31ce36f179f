"""Saliency maps: the gradient with respect to the input is the result."""
# near-miss: GR405
# %% setup
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3)).eval()

def saliency(x):
    x = x.clone().requires_grad_(True)
    score = model(x).max(-1).values.sum()
    return torch.autograd.grad(score, x)[0]
# %% cell
maps = [saliency(torch.randn(4, 8)) for _ in range(12)]
