"""The same search with the decision as a mask."""
# near-miss: GR102
# %% setup
import torch

target = torch.randn(32)

def propose(x, noise):
    candidate = x + 0.1 * noise
    better = (candidate - target).pow(2).sum() < (x - target).pow(2).sum()
    return torch.where(better, candidate, x)
# %% cell
x = torch.zeros(32)
noises = torch.randn(20, 32)
with torch.no_grad():
    for i in range(20):
        x = propose(x, noises[i])
