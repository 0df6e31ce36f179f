"""RL rollout: the trajectory is concatenated at every step of the cell's loop."""
# %% setup
import torch
from torch import nn

policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4)).eval()
# %% cell
state = torch.randn(1, 4)
trajectory = state
with torch.no_grad():
    for _ in range(20):
        state = state + 0.1 * policy(state)
        trajectory = torch.cat([trajectory, state])  # GR202
