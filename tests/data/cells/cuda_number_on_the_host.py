"""A weight that each step makes stays on the CPU: its number goes to the kernel with the launch."""
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
    weight = torch.tensor(0.7)
    logits = head(h) * weight
    return logits.softmax(-1).argmax(-1)

hidden = torch.zeros(40, 8, 64, device=device)
# %% cell
with torch.no_grad():
    tokens = [sample(h) for h in hidden]
