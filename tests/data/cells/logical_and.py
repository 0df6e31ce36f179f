"""The same two tests kept as a tensor."""
# near-miss: GR102
# %% setup
import torch

weights = torch.randn(8, 8)

def update(x):
    y = torch.tanh(x @ weights)
    y = y - y.mean()
    return y, (y - x).abs().max(), y.isnan().any()
# %% cell
x = torch.randn(4, 8)
stopped = torch.tensor(False)
for _ in range(20):
    x, change, bad = update(x)
    stopped = (change < 1e-6) & ~bad
