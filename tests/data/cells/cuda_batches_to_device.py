"""Evaluation: each batch is moved to the GPU in the loop, from pageable memory."""
# device: cuda
# regions: model
# %% setup
import torch
from torch import nn

device = torch.device("cuda:0")
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(device).eval()
loader = [(torch.randn(64, 256), torch.zeros(64, dtype=torch.long)) for _ in range(20)]
# %% cell
correct = torch.zeros((), device=device)
with torch.no_grad():
    for images, labels in loader:
        images = images.to(device)  # GR302
        labels = labels.to(device)  # GR302
        correct += (model(images).argmax(-1) == labels).sum()  # GR501
