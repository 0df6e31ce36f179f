"""Power iteration until the residual is small."""
# %% setup
import torch

matrix = torch.randn(16, 16)
matrix = matrix @ matrix.T / 16 + torch.eye(16)

def iterate(v):
    w = matrix @ v
    w = w / w.norm()
    return w, (w - v).abs().max()
# %% cell
v = torch.ones(16) / 4
v, residual = iterate(v)
while residual > 1e-4:  # GR102
    v, residual = iterate(v)
