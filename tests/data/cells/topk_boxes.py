"""Detection post-processing with a fixed number of boxes."""
# near-miss: GR103
# %% setup
import torch
from torch import nn

head = nn.Linear(16, 5).eval()

def detect(features):
    out = head(features)
    scores, boxes = out[:, 0].sigmoid(), out[:, 1:]
    best = scores.topk(10).indices
    return boxes[best]
# %% cell
frames = [torch.randn(50, 16) for _ in range(10)]
with torch.no_grad():
    for frame in frames:
        boxes = detect(frame)
