"""A token of a few bytes is copied at each replay: nothing worth a word."""
# device: cuda
# near-miss: GR301
# launch-us: 40
# kernel-us: 5
# regions: step
# %% setup
import torch
from torch import nn

device = torch.device("cuda:0")
table = nn.Embedding(100, 64).to(device).eval()

def step(token):  # GR501
    h = table(token)
    h = torch.tanh(h * 1.5)
    return h.argmax(-1)

# %% cell
token = torch.zeros(8, dtype=torch.long, device=device)
with torch.no_grad():
    for _ in range(100):
        token = step(token)
