"""Prompts of different lengths are scored one by one with a recurrent model."""
# %% setup
import torch
from torch import nn

rnn = nn.GRU(8, 16, batch_first=True).eval()
head = nn.Linear(16, 1).eval()

def score(prompt):  # GR201
    out, _ = rnn(prompt)
    return head(out[:, -1])
# %% cell
results = []
with torch.inference_mode():
    for length in (3, 11, 7, 19, 5, 13, 2, 17, 23, 29):
        results.append(score(torch.randn(1, length, 8)))
