"""Gradient-free search: a candidate is accepted by an `if` in the step."""
# %% setup
import torch

target = torch.randn(32)

def propose(x, noise):
    candidate = x + 0.1 * noise
    better = (candidate - target).pow(2).sum() < (x - target).pow(2).sum()
    if better:  # GR102
        return candidate * 1.0
    return x * 1.0
# %% cell
x = torch.zeros(32)
noises = torch.randn(20, 32)
with torch.no_grad():
    for i in range(20):
        x = propose(x, noises[i])
