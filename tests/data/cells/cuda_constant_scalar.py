"""A temperature is made on the device at every step."""
# device: cuda
# regions: sample
# %% setup
import torch
from torch import nn

device = torch.device("cuda:0")
head = nn.Linear(64, 100).to(device).eval()

def sample(h):  # GR501
    temperature = torch.tensor(0.7, device=device)  # GR401
    logits = head(h) / temperature
    return logits.softmax(-1).argmax(-1)

hidden = torch.zeros(40, 8, 64, device=device)
# %% cell
with torch.no_grad():
    tokens = [sample(h) for h in hidden]
