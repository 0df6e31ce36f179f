"""Code that asks whether it is captured, and does the same either way."""
# device: cuda
# near-miss: GR402
# regions: step
# %% setup
import torch

device = torch.device("cuda:0")
weights = torch.zeros(64, 64, device=device)

def step(x):  # GR501
    capturing = torch.cuda.is_current_stream_capturing()
    h = torch.tanh(x @ weights)
    return h * 0.5 + x if capturing else h * 0.5 + x

x = torch.zeros(64, 64, device=device)
# %% cell
with torch.no_grad():
    for _ in range(50):
        y = step(x)
