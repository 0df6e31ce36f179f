"""Training written out in the cell: the model is called in one statement, and `backward` in another, which no
graph of the model alone repeats."""
# %% setup
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = torch.randn(15, 16, 8)
targets = torch.randn(15, 16, 1)
# %% cell
for x, y in zip(data, targets):
    optimizer.zero_grad(set_to_none=True)
    prediction = model(x)  # GR405
    loss = (prediction - y).square().mean()
    loss.backward()
    optimizer.step()
