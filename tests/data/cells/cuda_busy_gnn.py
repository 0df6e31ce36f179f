"""Message passing over millions of edges."""
# device: cuda
# regions: propagate
# kernel-us: 2000
# %% setup
import torch

device = torch.device("cuda:0")
source = torch.zeros(1000000, dtype=torch.long, device=device)
target = torch.zeros(1000000, dtype=torch.long, device=device)

def propagate(h):  # GR406
    messages = h.index_select(0, source)
    total = torch.zeros_like(h).index_add(0, target, messages)
    return torch.relu(total) * 0.5

h = torch.zeros(10000, 64, device=device)
# %% cell
with torch.no_grad():
    for _ in range(12):
        out = propagate(h)
