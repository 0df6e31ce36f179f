"""A log line from inside the hot function."""
# %% setup
import torch

weights = torch.randn(16, 16) / 4

def advance(x):
    h = torch.tanh(x @ weights)
    print("advance", tuple(h.shape))  # GR404
    return h + 0.1 * x
# %% cell
x = torch.randn(4, 16)
for _ in range(12):
    x = advance(x)
