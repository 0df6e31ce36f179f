"""Non-maximum suppression, one box after the other."""
# %% setup
import torch

boxes = torch.rand(30, 4)
scores = torch.rand(30)

def overlap(one, others):  # GR201
    low = torch.maximum(one[:2], others[:, :2])
    high = torch.minimum(one[2:], others[:, 2:])
    return (high - low).clamp(min=0).prod(-1)
# %% cell
order = scores.argsort(descending=True)
kept = []
while len(order) > 0:
    current = order[0]
    kept.append(current)
    shared = overlap(boxes[current], boxes[order])  # GR101
    keep = shared < 0.3
    keep[0] = False
    order = order[keep]  # GR103
