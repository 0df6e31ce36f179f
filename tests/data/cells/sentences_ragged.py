"""Sentences of many lengths through an encoder, one at a time."""
# %% setup
import random
import torch
from torch import nn

random.seed(1)
embed = nn.Embedding(100, 32)
mix = nn.Linear(32, 32)

def encode(tokens):  # GR201
    h = embed(tokens)
    h = torch.relu(mix(h))
    return h.mean(1)

lengths = [random.randint(3, 40) for _ in range(30)]
sentences = [torch.randint(0, 100, (1, n)) for n in lengths]
# %% cell
vectors = []
with torch.no_grad():
    for sentence in sentences:
        vectors.append(encode(sentence))
