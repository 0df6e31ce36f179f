"""Fine-tuning a classifier: the running loss is read after every step."""
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
    return loss
# %% cell
running = 0.0
for x, y in batches:
    loss = train_step(x, y)
    running += loss.item()  # GR101
print(f"loss {running / len(batches):.3f}")
