"""The same state, updated in place."""
# device: cuda
# near-miss: GR301
# launch-us: 40
# kernel-us: 5
# regions: evolve
# %% setup
import torch

device = torch.device("cuda:0")
kernel = torch.zeros(512, 512, device=device)

def evolve(state):  # GR501
    flow = torch.tanh(state @ kernel)
    flow = flow - flow.mean()
    state.add_(flow, alpha=0.1).clamp_(-1, 1).mul_(0.999)

# %% cell
state = torch.zeros(1024, 512, device=device)
with torch.no_grad():
    for _ in range(100):
        evolve(state)
