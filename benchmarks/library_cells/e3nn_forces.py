# %% an equivariant network over points: tensor products, an energy, and forces that are differentiated again
# needs: e3nn
import torch
from e3nn import o3
from e3nn.nn import FullyConnectedNet

torch.manual_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.utils.deterministic.fill_uninitialized_memory = False
device = "cuda" if torch.cuda.is_available() else "cpu"
atoms, clouds, hidden = (32, 60, "16x0e + 8x1o") if device == "cuda" else (8, 24, "4x0e + 2x1o")
scalars = o3.Irreps(hidden).count("0e")


class Interaction(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.harmonics = o3.Irreps.spherical_harmonics(2)
        self.product = o3.FullyConnectedTensorProduct(hidden, self.harmonics, hidden, shared_weights=False)
        self.radial = FullyConnectedNet([4, 16, self.product.weight_numel], torch.nn.functional.silu)
        self.mix = o3.Linear(hidden, hidden)

    def forward(self, features, source, target, edges):
        angular = o3.spherical_harmonics(self.harmonics, edges, normalize=True, normalization="component")
        lengths = torch.exp(-((edges.norm(dim=1, keepdim=True) - torch.arange(4.0, device=edges.device)) ** 2))
        messages = self.product(features[source], angular, self.radial(lengths))
        return features + self.mix(torch.zeros_like(features).index_add(0, target, messages))


layers = torch.nn.ModuleList([Interaction(), Interaction()]).to(device)
head = o3.Linear(hidden, "0e").to(device)
begins = torch.cat([torch.ones(atoms, scalars), torch.zeros(atoms, o3.Irreps(hidden).dim - scalars)], 1).to(device)
source, target = (index.to(device) for index in torch.nonzero(~torch.eye(atoms, dtype=torch.bool), as_tuple=True))
optimizer = torch.optim.Adam([*layers.parameters(), *head.parameters()], lr=1e-2)
positions = torch.randn(clouds, atoms, 3).to(device)
log = []

# %%grape
for placed in positions:
    placed = placed.clone().requires_grad_()
    features = begins
    for layer in layers:
        features = layer(features, source, target, placed[source] - placed[target])
    energy = head(features).sum()
    (forces,) = torch.autograd.grad(-energy, placed, create_graph=True)
    loss = (energy - 1).square() + forces.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.append(loss.item())

# %%
RESULT = {"layers": layers, "head": head, "log": log, "forces": forces}
