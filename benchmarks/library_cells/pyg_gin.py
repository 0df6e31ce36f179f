# %% a graph isomorphism network over minibatches of small graphs
# needs: torch_geometric
import torch
from torch.nn import BatchNorm1d, Linear, ReLU, Sequential
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool

torch.manual_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.utils.deterministic.fill_uninitialized_memory = False
device = "cuda" if torch.cuda.is_available() else "cpu"
graphs, width, layers, epochs = (512, 64, 5, 4) if device == "cuda" else (160, 16, 3, 5)


def graph():
    nodes = int(torch.randint(8, 24, ()))
    return Data(
        x=torch.randn(nodes, 8), edge_index=torch.randint(0, nodes, (2, 3 * nodes)), y=torch.randint(0, 2, (1,))
    )


loader = DataLoader([graph() for _ in range(graphs)], batch_size=16, shuffle=True)


class GIN(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = torch.nn.ModuleList()
        for layer in range(layers):
            first = Linear(8 if layer == 0 else width, width)
            mlp = Sequential(first, BatchNorm1d(width), ReLU(), Linear(width, width))
            self.convs.append(GINConv(mlp, train_eps=True))
        self.lin1, self.lin2 = Linear(width, width), Linear(width, 2)

    def forward(self, x, edge_index, batch, size):
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        x = global_add_pool(x, batch, size)
        x = F.dropout(self.lin1(x).relu(), p=0.5, training=self.training)
        return self.lin2(x)


model = GIN().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
log = []


def train():
    model.train()
    total = 0.0
    for batch in loader:
        batch = batch.to(device)
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index, batch.batch, batch.num_graphs)
        loss = F.cross_entropy(out, batch.y)
        loss.backward()
        optimizer.step()
        total += float(loss) * batch.num_graphs
    return total / len(loader.dataset)


@torch.no_grad()
def test():
    model.eval()
    right = 0
    for batch in loader:
        batch = batch.to(device)
        pred = model(batch.x, batch.edge_index, batch.batch, batch.num_graphs).argmax(dim=-1)
        right += int((pred == batch.y).sum())
    return right / len(loader.dataset)


# %%grape
for epoch in range(epochs):
    loss, accuracy = train(), test()
    log.append((loss, accuracy))
    print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.3f}")

# %%
RESULT = {"model": model, "optimizer": optimizer, "log": log}
