"""A loss with class weights made from a list in each step."""
# device: cuda
# regions: weighted
# %% setup
import torch
import torch.nn.functional as F

device = torch.device("cuda:0")

def weighted(logits, labels):  # GR501
    weights = torch.tensor([0.2, 0.3, 0.5], device=device)  # GR401
    loss = F.cross_entropy(logits, labels, weight=weights)
    return loss + logits.square().mean() * 1e-4

logits = torch.zeros(30, 16, 3, device=device)
labels = torch.zeros(16, dtype=torch.long, device=device)
# %% cell
with torch.no_grad():
    losses = [weighted(l, labels) for l in logits]
