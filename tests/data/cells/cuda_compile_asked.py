"""Code that asks whether it is being compiled."""
# device: cuda
# near-miss: GR402
# regions: step
# %% setup
import torch

device = torch.device("cuda:0")
weights = torch.zeros(64, 64, device=device)

def step(x):  # GR501
    if torch.compiler.is_compiling():
        return x @ weights
    h = torch.tanh(x @ weights)
    return h * 0.5 + x

x = torch.zeros(64, 64, device=device)
# %% cell
with torch.no_grad():
    for _ in range(50):
        y = step(x)
