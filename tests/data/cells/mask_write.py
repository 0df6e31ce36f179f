"""RL rollout: rewards of finished environments are zeroed by mask assignment."""
# near-miss: GR103
# %% setup
import torch
from torch import nn

policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)).eval()

def act(obs, done):
    logits = policy(obs)
    logits = logits.masked_fill(done[:, None], 0.0)
    return logits.argmax(-1)
# %% cell
obs, done = torch.randn(8, 4), torch.zeros(8, dtype=torch.bool)
with torch.no_grad():
    for t in range(20):
        action = act(obs, done)
        obs = obs + 0.01 * action[:, None]
