"""A variational autoencoder: reconstruction and divergence are logged each step."""
# %% setup
import torch
from torch import nn
import torch.nn.functional as F

encoder, decoder = nn.Linear(32, 8), nn.Linear(4, 32)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
history = {"rec": [], "kl": []}

def step(x):
    mean, logvar = encoder(x).chunk(2, -1)
    z = mean + torch.randn_like(mean) * (logvar / 2).exp()
    rec = F.mse_loss(decoder(z), x)
    kl = -0.5 * (1 + logvar - mean.pow(2) - logvar.exp()).mean()
    optimizer.zero_grad()
    (rec + kl).backward()
    optimizer.step()  # GR403
    return rec.detach(), kl.detach()
# %% cell
for epoch in range(2):
    for _ in range(8):
        rec, kl = step(torch.randn(16, 32))
        history["rec"].append(rec.item())  # GR101
        history["kl"].append(kl.item())  # GR101
