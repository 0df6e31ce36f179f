"""Large matrices: the GPU is always busy, a graph would gain nothing."""
# device: cuda
# near-miss: GR501
# regions: multiply
# kernel-us: 900
# %% setup
import torch

device = torch.device("cuda:0")
right = torch.zeros(4096, 4096, device=device)

def multiply(left):  # GR406
    left = left @ right
    left = torch.tanh(left)
    return left / left.abs().amax()

left = torch.zeros(4096, 4096, device=device)
# %% cell
with torch.no_grad():
    for _ in range(20):
        result = multiply(left)
