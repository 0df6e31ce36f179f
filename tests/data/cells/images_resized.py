"""Photos resized before the network, so that it sees one size."""
# near-miss: GR201
# %% setup
import torch
from torch import nn
import torch.nn.functional as F

backbone = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
sizes = [(16, 24), (20, 20), (24, 16), (18, 30), (32, 32), (16, 16), (28, 20), (22, 26), (30, 18), (26, 26)]
photos = [torch.randn(1, 3, h, w) for h, w in sizes]
# %% cell
features = []
with torch.inference_mode():
    for photo in photos:
        square = F.interpolate(photo, size=(24, 24))
        features.append(backbone(square))
