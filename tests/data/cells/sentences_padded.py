"""The same sentences, padded to one length."""
# near-miss: GR201
# %% setup
import random
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

random.seed(1)
embed = nn.Embedding(100, 32)
mix = nn.Linear(32, 32)

def encode(tokens):
    h = embed(tokens)
    h = torch.relu(mix(h))
    return h.mean(1)

lengths = [random.randint(3, 40) for _ in range(30)]
sentences = pad_sequence([torch.randint(0, 100, (n,)) for n in lengths], batch_first=True)
# %% cell
vectors = []
with torch.no_grad():
    for sentence in sentences.split(1):
        vectors.append(encode(sentence))
