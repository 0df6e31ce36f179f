"""A mask built in Python and sent to the GPU in the loop of the cell."""
# device: cuda
# regions: attend
# %% setup
import torch
from torch import nn

device = torch.device("cuda:0")
proj = nn.Linear(64, 64).to(device).eval()

def attend(h, mask):  # GR501
    scores = proj(h) @ h.transpose(-1, -2)
    return scores.masked_fill(mask, -1e9).softmax(-1) @ h

h = torch.zeros(2, 8, 64, device=device)
lengths = [3, 5, 8, 2, 7, 6, 4, 8] * 4
# %% cell
with torch.no_grad():
    for n in lengths:
        mask = torch.tensor([i >= n for i in range(8)], device=device)  # GR401
        out = attend(h, mask)
