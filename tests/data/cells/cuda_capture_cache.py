"""A position table that is built anew while it is captured."""
# device: cuda
# regions: rotate
# %% setup
import torch

device = torch.device("cuda:0")
known = torch.zeros(64, device=device)

def rotate(x):  # GR501
    table = known
    if torch.cuda.is_current_stream_capturing():  # GR402
        table = torch.arange(64, device=device) / 64
    return torch.cat([x * table.cos(), x * table.sin()], -1).tanh()

x = torch.zeros(16, 64, device=device)
# %% cell
with torch.no_grad():
    for _ in range(50):
        y = rotate(x)
