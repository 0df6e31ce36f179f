"""A helper that returns a generator of tensors."""
# %% setup
import torch

weights = torch.randn(8, 8)

def rows(x):  # GR405
    h = torch.tanh(x @ weights) * 0.5
    h = h - h.mean()
    return (row for row in h)
# %% cell
x = torch.randn(4, 8)
for _ in range(16):
    x = torch.stack(list(rows(x)))
