"""Greedy decoding of a small language model; each token is fetched as a list."""
# %% setup
import torch
from torch import nn

class Decoder(nn.Module):
    def __init__(self, vocab=50, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, vocab)

    def forward(self, token, state):
        state = self.cell(self.embed(token), state)
        return self.head(state), state

model = Decoder().eval()
# %% cell
token, state = torch.zeros(2, dtype=torch.long), torch.zeros(2, 32)
generated = []
with torch.inference_mode():
    for _ in range(24):
        logits, state = model(token, state)
        token = logits.argmax(-1)
        generated.append(token.tolist())  # GR101
