"""A mask builder that takes another way while it is captured."""
# device: cuda
# regions: forward
# %% setup
import torch
from torch import nn

device = torch.device("cuda:0")
proj = nn.Linear(64, 64).to(device).eval()

def forward(h):  # GR501
    scores = proj(h) @ h.transpose(-1, -2)
    if torch.cuda.is_current_stream_capturing():  # GR402
        mask = torch.ones(8, 8, device=device).triu(1)
        scores = scores.masked_fill(mask > 0, -1e9)
    return scores.softmax(-1) @ h

h = torch.zeros(2, 8, 64, device=device)
# %% cell
with torch.no_grad():
    for _ in range(50):
        out = forward(h)
