# %% training with differential privacy: hooks take the gradients of each sample, batches have random sizes
# needs: opacus
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
width, images, size = (32, 2048, 28) if device == "cuda" else (4, 192, 8)
model = nn.Sequential(
    nn.Conv2d(1, width, 3), nn.GroupNorm(2, width), nn.ReLU(), nn.Flatten(), nn.Linear(width * (size - 2) ** 2, 3)
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
data = TensorDataset(torch.randn(images, 1, size, size), torch.randint(0, 3, (images,)))
privacy = PrivacyEngine(accountant="rdp")
model, optimizer, loader = privacy.make_private(
    module=model,
    optimizer=optimizer,
    data_loader=DataLoader(data, batch_size=images // 12),
    noise_multiplier=1.1,
    max_grad_norm=1.0,
    noise_generator=torch.Generator(device).manual_seed(3),
)
log = []

# %%grape
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        log.append(loss.item())
    print(f"epoch {epoch}: epsilon {privacy.get_epsilon(1e-5):.4f}")

# %%
RESULT = {"model": model.state_dict(), "log": log}
