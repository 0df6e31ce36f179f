"""Training of a regression model, step by step."""
# near-miss: GR405
# %% setup
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

def fit(x, y):
    optimizer.zero_grad(set_to_none=True)
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()

data = torch.randn(15, 16, 8)
targets = torch.randn(15, 16, 1)
# %% cell
losses = [fit(x, y) for x, y in zip(data, targets)]
