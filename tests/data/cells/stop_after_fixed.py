"""Decoding that masks finished sequences and runs a fixed number of steps."""
# near-miss: GR102 GR103
# %% setup
import torch
from torch import nn

EOS = 3
table = nn.Embedding(20, 20)

def step(token):
    h = table(token)
    h = torch.softmax(h * 1.5, -1)
    return h.argmax(-1)
# %% cell
token = torch.arange(6)
done = torch.zeros(6, dtype=torch.bool)
with torch.no_grad():
    for _ in range(30):
        token = torch.where(done, EOS, step(token))
        done |= token == EOS
