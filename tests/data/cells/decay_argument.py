"""An exponential moving average whose decay follows a schedule of Python numbers."""
# %% setup
import torch

weights = torch.randn(64, 64)

def average(shadow, decay):  # GR403
    fresh = torch.tanh(weights @ shadow)
    return shadow * decay + fresh * (1 - decay)
# %% cell
shadow = torch.zeros(64, 64)
with torch.no_grad():
    for step in range(40):
        shadow = average(shadow, min(0.99, (1 + step) / (10 + step)))
