"""Hand-written attention with a key-value cache that grows."""
# %% setup
import torch
from torch import nn
import torch.nn.functional as F

proj = nn.Linear(16, 48).eval()

def attend(x, keys, values):
    q, k, v = proj(x).chunk(3, -1)
    keys = torch.cat([keys, k], 1)  # GR202
    values = torch.cat([values, v], 1)
    out = F.scaled_dot_product_attention(q, keys, values)
    return out, keys, values
# %% cell
x = torch.randn(2, 1, 16)
keys = values = torch.zeros(2, 0, 16)
with torch.no_grad():
    for _ in range(20):
        x, keys, values = attend(x, keys, values)
