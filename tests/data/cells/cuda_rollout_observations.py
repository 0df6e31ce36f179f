"""RL rollout: observations come from a simulator on the CPU."""
# device: cuda
# regions: policy
# %% setup
import torch
from torch import nn

device = torch.device("cuda:0")
policy = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 4)).to(device).eval()
observations = torch.randn(40, 32, 64)
# %% cell
actions = []
with torch.inference_mode():
    for step in range(40):
        observation = observations[step].to(device)  # GR302
        actions.append(policy(observation).argmax(-1))  # GR501
