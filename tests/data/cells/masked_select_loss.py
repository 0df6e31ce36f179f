"""Statistics over valid pixels in the cell's own loop."""
# %% setup
import torch

depth = torch.rand(10, 32, 32)
valid = depth > 0.3
# %% cell
means = []
for d, m in zip(depth, valid):
    means.append(torch.masked_select(d, m).mean())  # GR103
result = torch.stack(means)
