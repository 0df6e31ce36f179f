"""Two large inputs of one call, both made anew."""
# device: cuda
# launch-us: 40
# kernel-us: 5
# regions: fuse
# %% setup
import torch

device = torch.device("cuda:0")

def fuse(left, right):  # GR501
    both = torch.tanh(left) * torch.sigmoid(right)
    both = both - both.mean(-1, keepdim=True)
    return (both * both).sum(-1).sqrt()

a = torch.zeros(256, 512, device=device)
b = torch.zeros(256, 512, device=device)
# %% cell
with torch.no_grad():
    for _ in range(100):
        left, right = a + 1, b + 2
        out = fuse(left, right)  # GR301
