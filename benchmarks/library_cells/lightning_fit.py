# %% Lightning: `fit` with a validation loop, a one-cycle schedule, clipped gradients
# needs: lightning
import logging
import warnings

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
lightning.seed_everything(0, verbose=False)
torch.backends.cudnn.deterministic = True
cuda = torch.cuda.is_available()
channels, images, size, epochs = (32, 1024, 32, 4) if cuda else (8, 128, 12, 3)


class Classifier(lightning.LightningModule):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.net = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride=2, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(channels * (size // 2) ** 2, 10),
        )
        self.seen = []

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        out = self.net(x)
        self.log("val_loss", F.cross_entropy(out, y))
        self.log("val_acc", (out.argmax(-1) == y).float().mean(), prog_bar=True)

    def on_validation_epoch_end(self):
        self.seen.append(self.trainer.callback_metrics["val_loss"].clone())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def loader(count, shuffle):
    data = TensorDataset(torch.randn(count, 3, size, size), torch.randint(0, 10, (count,)))
    return DataLoader(data, batch_size=16, shuffle=shuffle)


training, validation = loader(images, True), loader(images // 4, False)
model = Classifier(epochs * len(training))
history = []

# %%grape
trainer = lightning.Trainer(
    max_epochs=epochs,
    accelerator="auto",
    devices=1,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, training, validation)
history.append({name: value.item() for name, value in trainer.callback_metrics.items()})

# %%
RESULT = {"model": model, "optimizers": list(trainer.optimizers), "history": history, "seen": model.seen}
