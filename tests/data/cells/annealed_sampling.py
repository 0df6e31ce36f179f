"""Langevin sampling with a temperature kept in a dict."""
# %% setup
import torch

precision = torch.eye(8) * 2
config = {"temperature": 1.0}

def langevin(x, noise):
    gradient = x @ precision
    x = x - 0.01 * gradient
    return x + noise * config["temperature"]  # GR403
# %% cell
x = torch.randn(16, 8)
noise = torch.randn(30, 16, 8)
for i in range(30):
    config["temperature"] = 1.0 / (1 + i)
    x = langevin(x, noise[i])
