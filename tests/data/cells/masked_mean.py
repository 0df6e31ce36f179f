"""The same statistics with a weighted sum of fixed shape."""
# near-miss: GR103
# %% setup
import torch

depth = torch.rand(10, 32, 32)
valid = depth > 0.3
# %% cell
means = []
for d, m in zip(depth, valid):
    means.append((d * m).sum() / m.sum())
result = torch.stack(means)
