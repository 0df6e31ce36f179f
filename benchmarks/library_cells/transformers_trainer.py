# %% `Trainer`: a causal language model, cosine schedule, evaluation between epochs
# needs: transformers, accelerate
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments, set_seed

set_seed(0)
cuda = torch.cuda.is_available()
layers, width, words, texts, length = (6, 256, 8000, 256, 64) if cuda else (2, 32, 300, 48, 24)


class Texts(Dataset):
    def __init__(self, count):
        self.ids = torch.randint(0, words, (count, length))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


model = GPT2LMHeadModel(GPT2Config(vocab_size=words, n_positions=length, n_embd=width, n_layer=layers, n_head=4))
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    num_train_epochs=3,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    learning_rate=5e-4,
    lr_scheduler_type="cosine",
    warmup_steps=4,
    logging_steps=5,
    eval_strategy="epoch",
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    seed=0,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Texts(texts), eval_dataset=Texts(texts // 4))
trainer.remove_callback(PrinterCallback)

# %%grape
outcome = trainer.train()

# %%
told = [
    {name: entry[name] for name in ("loss", "eval_loss", "learning_rate", "grad_norm") if name in entry}
    for entry in trainer.state.log_history
]
RESULT = {"model": model, "steps": outcome.global_step, "loss": outcome.training_loss, "log": told}
