"""An endless iterator decides which operators run: nobody can guard what it will give next."""
# %% setup
import itertools
import torch

weights = torch.randn(16, 16) / 4
ticks = itertools.count()

def tick(x):  # GR405
    h = torch.tanh(x @ weights)
    if next(ticks) % 2:
        h = torch.relu(h)
    return torch.sigmoid(h)
# %% cell
x = torch.randn(4, 16)
for _ in range(30):
    x = tick(x)
