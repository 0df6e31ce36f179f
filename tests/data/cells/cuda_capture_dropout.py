"""A sampler that skips its noise while it is captured."""
# device: cuda
# regions: sampler
# %% setup
import torch

device = torch.device("cuda:0")
weights = torch.zeros(64, 64, device=device)

def sampler(x):  # GR501
    h = torch.tanh(x @ weights)
    if not torch.cuda.is_current_stream_capturing():  # GR402
        h = h + 0.1 * torch.randn_like(h)
    return h.clamp(-1, 1)

x = torch.zeros(64, 64, device=device)
# %% cell
with torch.no_grad():
    for _ in range(50):
        y = sampler(x)
