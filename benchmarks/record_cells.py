"""Records the reports of five kinds of cells, as the files that `scripts/screenshots.py --only cells --reports` draws.

    python benchmarks/record_cells.py FOLDER [--small]

Inference of a small network, training with a loss that is read at each step, decoding with GPT-2, a loop that waits
for its loader, and the training cell once more, which streams have served before. Each is what a person sees under the
default engine, but for the inference and the decoding, which regions serve. Downloads nothing (random weights); needs
transformers. Without a GPU the reports are those of the CPU reference. `--small`: a few iterations each, to try it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SETUP = """\
import time, torch, warnings
warnings.filterwarnings("ignore")
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
net = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256)) for _ in range(24)]).to(device)
x = torch.randn(32, 256, device=device)
config = GPT2Config(n_layer={layers}, n_embd=192, n_head=4)
model = GPT2LMHeadModel(config).to(device).eval()
prompt = torch.randint(0, config.vocab_size, (1, 16), device=device)

class Slow(Dataset):
    def __len__(self):
        return 64 * {steps}

    def __getitem__(self, i):
        return torch.randn(256, generator=torch.Generator().manual_seed(i)).sort().values
"""
INFERENCE = """\
with torch.inference_mode():
    for _ in range(10 * {steps}):
        y = net(x)
"""
TRAINING = """\
torch.manual_seed(0)
student = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 256)).to(device)
optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
losses = []
for step in range(20 * {steps}):
    optimizer.zero_grad()
    loss = (student(x) - x.flip(-1)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
DECODE = """\
tokens = model.generate(prompt, max_new_tokens=4 * {steps}, do_sample=False, pad_token_id=0)
"""
STARVED = """\
loader = DataLoader(Slow(), batch_size=64)
with torch.inference_mode():
    for batch in loader:
        y = net(batch.to(device))
"""
CELLS = {
    "inference": ("--engine regions", INFERENCE, 1),
    "training-first": ("", TRAINING, 1),
    "training-third": ("", TRAINING, 2),
    "decode": ("--engine regions", DECODE, 2),
    "data-bound": ("--engine regions", STARVED, 1),
}
"""Options, source, and how often it runs until its report is kept."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    from IPython.core.interactiveshell import InteractiveShell

    size = {"steps": 4, "layers": 2} if arguments.small else {"steps": 50, "layers": 12}
    shell = InteractiveShell.instance()
    shell.run_cell("%load_ext grape").raise_error()
    shell.run_cell(SETUP.format(**size)).raise_error()
    for name, (options, source, runs) in CELLS.items():
        file = arguments.folder.resolve() / f"{name}.json"
        for _ in range(runs):
            head = f"%%grape --no-widget {options} --json {file}\n"
            shell.run_cell(head + source.format(**size), store_history=True).raise_error()


if __name__ == "__main__":
    main()
