"""Evaluation that adds up correct predictions in a tensor."""
# near-miss: GR101
# %% setup
import torch
from torch import nn

model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 10)).eval()
loader = [(torch.randn(32, 16), torch.randint(0, 10, (32,))) for _ in range(16)]
# %% cell
correct = torch.zeros((), dtype=torch.long)
with torch.no_grad():
    for images, labels in loader:
        correct += (model(images).argmax(-1) == labels).sum()
accuracy = correct.item() / 512
