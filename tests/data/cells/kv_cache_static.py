"""The same attention with a cache that is written by index."""
# near-miss: GR202 GR201
# %% setup
import torch
from torch import nn
import torch.nn.functional as F

proj = nn.Linear(16, 48).eval()

def attend(x, keys, values, position, mask):
    q, k, v = proj(x).chunk(3, -1)
    keys.index_copy_(1, position, k)
    values.index_copy_(1, position, v)
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
# %% cell
x = torch.randn(2, 1, 16)
keys, values = torch.zeros(2, 20, 16), torch.zeros(2, 20, 16)
positions = torch.arange(20)
with torch.no_grad():
    for i in range(20):
        mask = positions <= positions[i]
        x = attend(x, keys, values, positions[i : i + 1], mask)
