"""Federated averaging over state dicts."""
# near-miss: GR404 GR403
# %% setup
import torch
from torch import nn

clients = [nn.Linear(16, 16).requires_grad_(False) for _ in range(6)]

def average(weights):
    stacked = torch.stack([client.weight for client in clients])
    return (stacked * weights[:, None, None]).sum(0) / weights.sum()
# %% cell
weights = torch.rand(6)
for round in range(20):
    merged = average(weights)
    weights = weights * 0.9 + 0.05
