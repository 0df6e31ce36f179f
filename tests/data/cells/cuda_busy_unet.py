"""A large denoiser whose kernels run long."""
# device: cuda
# near-miss: GR501
# regions: unet
# kernel-us: 700
# %% setup
import torch
from torch import nn

device = torch.device("cuda:0")
unet = nn.Sequential(*(nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.SiLU()) for _ in range(6))).to(device).eval()
# %% cell
x = torch.zeros(8, 16, 256, 256, device=device)
with torch.inference_mode():
    for _ in range(25):
        x = x - 0.1 * unet(x)  # GR406
