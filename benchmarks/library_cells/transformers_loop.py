# %% a classifier in a loop of one's own: padding by batch, clipped gradients, warmup and linear decay
# needs: transformers
import random

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

random.seed(0)
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
layers, width, words, texts, longest = (6, 256, 8000, 256, 96) if device == "cuda" else (2, 32, 300, 64, 40)
config = BertConfig(
    vocab_size=words,
    hidden_size=width,
    num_hidden_layers=layers,
    num_attention_heads=4,
    intermediate_size=4 * width,
    num_labels=3,
)
model = BertForSequenceClassification(config).to(device)

lengths = [random.randint(8, longest) for _ in range(texts)]
dataset = [(torch.randint(1, words, (length,)), length % 3) for length in lengths]


def collate(batch):
    ids = pad_sequence([text for text, _ in batch], batch_first=True)
    labels = torch.tensor([label for _, label in batch])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


loader = DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=collate)
epochs = 2
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=10, num_training_steps=200)
history = []

# %%grape
model.train()
for epoch in range(epochs):
    total = 0.0
    for batch in loader:
        batch = {name: value.to(device) for name, value in batch.items()}
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        total += loss.item()
    history.append(total / len(loader))
    print(f"epoch {epoch}: loss {history[-1]:.4f}, lr {scheduler.get_last_lr()[0]:.2e}")

# %%grape
model.eval()
right = 0
with torch.no_grad():
    for batch in loader:
        batch = {name: value.to(device) for name, value in batch.items()}
        right += (model(**batch).logits.argmax(-1) == batch["labels"]).sum().item()
print(f"accuracy {right / len(dataset):.3f}")

# %%
RESULT = {"model": model, "optimizer": optimizer, "lr": scheduler.get_last_lr(), "history": history, "right": right}
