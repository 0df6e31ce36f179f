"""Frames of a video, each made anew on the device."""
# device: cuda
# launch-us: 40
# kernel-us: 5
# regions: net
# %% setup
import torch
from torch import nn

device = torch.device("cuda:0")
net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3)).to(device).eval()
video = torch.zeros(1, 3, 128, 128, device=device)
# %% cell
with torch.inference_mode():
    for _ in range(100):
        frame = video / 255 - 0.5
        out = net(frame)  # GR501 GR301
