"""The data set lies on the GPU."""
# device: cuda
# near-miss: GR302 GR501
# regions: model
# kernel-us: 20
# %% setup
import torch
from torch import nn

device = torch.device("cuda:0")
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(device).eval()
data = torch.randn(20, 64, 256).to(device)
# %% cell
outputs = []
with torch.no_grad():
    for images in data:
        outputs.append(model(images))
