"""A recurrent state of some megabytes is returned as a new tensor and passed back in."""
# device: cuda
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
    state = state + 0.1 * flow
    return state.clamp(-1, 1) * 0.999

# %% cell
state = torch.zeros(1024, 512, device=device)
with torch.no_grad():
    for _ in range(100):
        state = evolve(state)  # GR301
