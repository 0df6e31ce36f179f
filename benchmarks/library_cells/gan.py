# %% a convolutional GAN: two networks, two optimizers, images of the generator kept
import torch
from torch import nn

torch.manual_seed(0)
torch.backends.cudnn.deterministic = True
device = "cuda" if torch.cuda.is_available() else "cpu"
width, size, batch, steps = (32, 32, 32, 60) if device == "cuda" else (8, 16, 8, 40)
levels = size.bit_length() - 3


def generator():
    parts, now = [nn.ConvTranspose2d(64, width << levels, 4, bias=False)], width << levels
    for _ in range(levels):
        parts += [nn.BatchNorm2d(now), nn.ReLU(True), nn.ConvTranspose2d(now, now // 2, 4, 2, 1, bias=False)]
        now //= 2
    return nn.Sequential(*parts, nn.BatchNorm2d(now), nn.ReLU(True), nn.Conv2d(now, 3, 3, padding=1), nn.Tanh())


def discriminator():
    parts, now = [nn.Conv2d(3, width, 3, padding=1), nn.LeakyReLU(0.2, True)], width
    for _ in range(levels):
        parts += [nn.Conv2d(now, 2 * now, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * now), nn.LeakyReLU(0.2, True)]
        now *= 2
    return nn.Sequential(*parts, nn.Conv2d(now, 1, 4), nn.Flatten(0))


G, D = generator().to(device), discriminator().to(device)
criterion = nn.BCEWithLogitsLoss()
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))
images = torch.rand(8 * batch, 3, size, size) * 2 - 1
fixed = torch.randn(4, 64, 1, 1, device=device)
losses_g, losses_d, grids = [], [], []

# %%grape
for step in range(steps):
    real = images[torch.randint(0, len(images), (batch,))].to(device)
    ones, zeros = torch.ones(batch, device=device), torch.zeros(batch, device=device)
    D.zero_grad()
    loss_real = criterion(D(real), ones)
    loss_real.backward()
    fake = G(torch.randn(batch, 64, 1, 1, device=device))
    loss_fake = criterion(D(fake.detach()), zeros)
    loss_fake.backward()
    opt_d.step()
    G.zero_grad()
    loss_g = criterion(D(fake), ones)
    loss_g.backward()
    opt_g.step()
    losses_d.append(loss_real.item() + loss_fake.item())
    losses_g.append(loss_g.item())
    if step % 10 == 0:
        with torch.no_grad():
            grids.append(G(fixed).cpu())

# %%
RESULT = {"G": G, "D": D, "opt_g": opt_g, "opt_d": opt_d, "losses": [losses_g, losses_d], "grids": grids}
