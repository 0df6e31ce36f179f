"""A module counts its calls in a buffer, in place."""
# near-miss: GR404
# %% setup
import torch
from torch import nn

class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return torch.tanh(self.lin(x)) + x

net = Counted().eval()
# %% cell
x = torch.randn(2, 8)
with torch.no_grad():
    for _ in range(20):
        x = net(x)
