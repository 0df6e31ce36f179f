"""Image statistics into Python floats by `float()`."""
# %% setup
import torch
from torch import nn

filt = nn.Conv2d(1, 2, 3).eval()
images = torch.randn(20, 1, 1, 16, 16)
# %% cell
sharpness = []
with torch.no_grad():
    for image in images:
        sharpness.append(float(filt(image).var()))  # GR101
