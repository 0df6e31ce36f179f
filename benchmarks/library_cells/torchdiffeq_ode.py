# %% a neural differential equation: fixed steps (rk4), then chosen ones (dopri5), with the adjoint as well
# needs: torchdiffeq
import torch
from torch import nn
from torchdiffeq import odeint, odeint_adjoint

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
steps, size = (6, 20) if device == "cuda" else (4, 10)
times = torch.linspace(0.0, 5.0, 100, device=device)
matrix = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]], device=device)


class Spiral(nn.Module):
    def forward(self, t, y):
        return y**3 @ matrix


with torch.no_grad():
    truth = odeint(Spiral(), torch.tensor([[2.0, 0.0]], device=device), times, method="dopri5")


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))

    def forward(self, t, y):
        return self.net(y**3)


field = Field().to(device)
optimizer = torch.optim.RMSprop(field.parameters(), lr=1e-3)
losses = []


def batch():
    starts = torch.randperm(len(times) - 10)[:size].to(device)
    return truth[starts], times[:10], torch.stack([truth[starts + k] for k in range(10)])


def train(solve, method):
    for _ in range(steps):
        start, t, wanted = batch()
        optimizer.zero_grad()
        loss = (solve(field, start, t, method=method) - wanted).abs().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


# %%grape
train(odeint, "rk4")

# %%grape
train(odeint, "dopri5")

# %%grape
train(odeint_adjoint, "dopri5")

# %%grape
with torch.no_grad():
    path = odeint(field, truth[0], times, method="dopri5")

# %%
RESULT = {"field": field, "optimizer": optimizer, "losses": losses, "path": path}
