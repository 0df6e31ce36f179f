"""A normalisation with another formula for captures."""
# device: cuda
# regions: normalize
# %% setup
import torch

device = torch.device("cuda:0")

def normalize(x):  # GR501
    x = x - x.mean(-1, keepdim=True)
    if torch.cuda.is_current_stream_capturing():  # GR402
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True))
    return x / x.norm(dim=-1, keepdim=True)

x = torch.zeros(64, 64, device=device)
# %% cell
with torch.no_grad():
    for _ in range(50):
        y = normalize(x)
