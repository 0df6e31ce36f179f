"""A Python number that takes two values, each many times."""
# near-miss: GR403
# %% setup
import torch

weights = torch.randn(64, 64)

def average(shadow, decay):
    fresh = torch.tanh(weights @ shadow)
    return shadow * decay + fresh * (1 - decay)
# %% cell
shadow = torch.zeros(64, 64)
with torch.no_grad():
    for step in range(40):
        shadow = average(shadow, 0.9 if step % 2 else 0.99)
