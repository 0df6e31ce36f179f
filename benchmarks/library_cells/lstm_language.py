# %% `nn.LSTM` with dropout: a language model, truncated backpropagation through time
import torch
from torch import nn

torch.manual_seed(0)
torch.backends.cudnn.deterministic = True
device = "cuda" if torch.cuda.is_available() else "cpu"
width, words, batch, length, chunks = (200, 2000, 20, 35, 60) if device == "cuda" else (32, 200, 8, 12, 80)


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.3)
        self.embed = nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, width, num_layers=2, dropout=0.3)
        self.head = nn.Linear(width, words)

    def forward(self, x, hidden):
        out, hidden = self.rnn(self.drop(self.embed(x)), hidden)
        return self.head(self.drop(out)), hidden


model = Language().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
text = torch.randint(0, words, (chunks * length + 1, batch)).to(device)
log = []

# %%grape
model.train()
hidden = tuple(torch.zeros(2, batch, width, device=device) for _ in range(2))
total = 0.0
for at in range(0, len(text) - 1, length):
    hidden = tuple(state.detach() for state in hidden)
    x, y = text[at : at + length], text[at + 1 : at + 1 + length]
    optimizer.zero_grad()
    out, hidden = model(x, hidden)
    loss = criterion(out.flatten(0, 1), y.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    total += loss.item()
    if at // length % 20 == 19:
        print(f"chunk {at // length}: {total / 20:.4f}")
        log.append(total / 20)
        total = 0.0

# %%
RESULT = {"model": model, "optimizer": optimizer, "hidden": hidden, "log": log}
