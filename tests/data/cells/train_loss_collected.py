"""The same training loop, with the losses kept on the device and read once."""
# near-miss: GR101
# %% setup
import torch
from torch import nn
import torch.nn.functional as F

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(12)]

def train_step(x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()  # GR403
    return loss.detach()
# %% cell
losses = []
for x, y in batches:
    losses.append(train_step(x, y))
print(torch.stack(losses).mean().item())
