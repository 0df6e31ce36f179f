"""A global step counter is written inside the step."""
# %% setup
import torch

weights = torch.randn(16, 16) / 4
steps = 0

def update(x):
    global steps
    steps += 1  # GR404
    h = torch.tanh(x @ weights)
    return h + 0.1 * x
# %% cell
x = torch.randn(4, 16)
for _ in range(20):
    x = update(x)
