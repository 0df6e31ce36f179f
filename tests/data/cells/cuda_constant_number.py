"""The temperature is a Python number: operators take it as it is."""
# device: cuda
# near-miss: GR401
# regions: sample
# kernel-us: 30
# %% setup
import torch
from torch import nn

device = torch.device("cuda:0")
head = nn.Linear(64, 100).to(device).eval()

def sample(h):
    logits = head(h) / 0.7 + torch.full((100,), 0.1, device=device)
    return logits.softmax(-1).argmax(-1)

hidden = torch.zeros(40, 8, 64, device=device)
# %% cell
with torch.no_grad():
    tokens = [sample(h) for h in hidden]
