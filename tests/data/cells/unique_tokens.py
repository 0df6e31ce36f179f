"""A repetition penalty from the distinct tokens so far."""
# %% setup
import torch

bias = torch.randn(40)

def penalize(logits, history):
    seen = torch.unique(history)  # GR103
    logits = logits + bias
    logits = logits.index_add(0, seen, torch.full(seen.shape, -1.0))
    return logits.softmax(-1)
# %% cell
history = torch.randint(0, 40, (16,))
with torch.no_grad():
    for _ in range(10):
        probabilities = penalize(torch.randn(40), history)
