"""Regression: inputs and targets are copied with `.cuda`-like calls inside of the evaluation function."""
# device: cuda
# regions: error
# %% setup
import torch
from torch import nn

device = torch.device("cuda:0")
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 1)).to(device).eval()

def error(x, y):  # GR501
    x = x.to(device)  # GR302
    y = y.to(device)  # GR302
    return (model(x) - y).square().mean()

xs, ys = torch.randn(30, 512, 128), torch.randn(30, 512, 1)
# %% cell
with torch.no_grad():
    errors = [error(x, y) for x, y in zip(xs, ys)]
