"""The same iteration with a fixed count in Python."""
# near-miss: GR102
# %% setup
import torch

matrix = torch.randn(16, 16)
matrix = matrix @ matrix.T / 16 + torch.eye(16)

def iterate(v):
    w = matrix @ v
    w = w / w.norm()
    return w + 0 * v
# %% cell
v = torch.ones(16) / 4
steps = 0
while steps < 25:
    v = iterate(v)
    steps += 1
