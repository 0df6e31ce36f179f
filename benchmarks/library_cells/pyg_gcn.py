# %% a graph convolutional network on one graph, with masks; accuracies at each epoch
# needs: torch_geometric
import torch
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

torch.manual_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.utils.deterministic.fill_uninitialized_memory = False
device = "cuda" if torch.cuda.is_available() else "cpu"
nodes, edges, features, classes, epochs = (2708, 10556, 256, 7, 100) if device == "cuda" else (300, 1200, 32, 7, 120)

data = Data(
    x=torch.rand(nodes, features),
    edge_index=torch.randint(0, nodes, (2, edges)),
    y=torch.randint(0, classes, (nodes,)),
)
order = torch.randperm(nodes)
data.train_mask, data.val_mask, data.test_mask = (torch.zeros(nodes, dtype=torch.bool) for _ in range(3))
data.train_mask[order[: nodes // 4]] = True
data.val_mask[order[nodes // 4 : nodes // 2]] = True
data.test_mask[order[nodes // 2 :]] = True
data = data.to(device)


class GCN(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GCNConv(features, 16)
        self.conv2 = GCNConv(16, classes)

    def forward(self, x, edge_index):
        x = F.dropout(x, p=0.5, training=self.training)
        x = self.conv1(x, edge_index).relu()
        x = F.dropout(x, p=0.5, training=self.training)
        return self.conv2(x, edge_index)


model = GCN().to(device)
optimizer = torch.optim.Adam(
    [{"params": model.conv1.parameters(), "weight_decay": 5e-4}, {"params": model.conv2.parameters()}], lr=0.01
)
log = []


def train():
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
    return float(loss)


@torch.no_grad()
def test():
    model.eval()
    pred = model(data.x, data.edge_index).argmax(dim=-1)
    masks = (data.train_mask, data.val_mask, data.test_mask)
    return [int((pred[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


# %%grape
best = 0.0
for _ in range(epochs):
    loss = train()
    accuracies = test()
    best = max(best, accuracies[1])
    log.append([loss, *accuracies])

# %%
RESULT = {"model": model, "optimizer": optimizer, "log": log, "best": best}
