"""A retrieval step whose features lie somewhere else at every call."""
# device: cuda
# launch-us: 40
# kernel-us: 5
# regions: rank
# %% setup
import torch

device = torch.device("cuda:0")
index = torch.zeros(4096, 256, device=device)

def rank(queries):  # GR501
    scores = queries @ index.T
    scores = scores - scores.amax(-1, keepdim=True)
    scores = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return (scores * 2).sigmoid().sum(-1)

base = torch.zeros(512, 256, device=device)
# %% cell
with torch.no_grad():
    for _ in range(100):
        queries = base * 1.5
        best = rank(queries)  # GR301
