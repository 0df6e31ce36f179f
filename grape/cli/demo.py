"""`grape demo`: the main job on this machine's own device, in an IPython shell of its own, without a notebook."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import textwrap
from typing import TYPE_CHECKING

from ..errors import GrapeError
from ..options import REFERENCE

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from ..render import Report

_MODEL = '''\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
sizes = (12, 512, 8, 8192, 256) if device == "cuda" else (2, 64, 4, 512, 128)
layers, width, heads, vocabulary, length = sizes
steps = 200 if device == "cuda" else 100


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("keys", torch.zeros(1, heads, length, width // heads))
        self.register_buffer("values", torch.zeros(1, heads, length, width // heads))

    def forward(self, x, position, seen):
        q, k, v = self.qkv(self.norm1(x)).view(1, 1, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        mixed = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)
        x = x + self.out(mixed.transpose(1, 2).reshape(1, 1, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        self.register_buffer("slots", torch.arange(length))

    def forward(self, token, position):
        x = (self.token(token) + self.place(position)).view(1, 1, width)
        seen = (self.slots <= position).view(1, length)
        for block in self.blocks:
            x = block(x, position, seen)
        return self.head(self.norm(x)).view(1, vocabulary)


model = Decoder().to(device).eval()


def step(token, position):
    """The next token, int64 [1], from the last one and its position, both int64 [1]."""
    return model(token, position).argmax(-1)
'''

_MAGIC = "%%grape --engine regions\n"
"""On a GPU streams would serve the first run; what it shows is a graph of the call."""
_LOOP = """\
with torch.inference_mode():
    token = torch.tensor([1], device=device)
    position = torch.tensor([0], device=device)
    tokens = []
    for _ in range(steps):
        token = step(token, position)
        position += 1
        tokens.append(token)
"""


class _DemoFailed(GrapeError):
    """The demo did not do what it is there to show."""


def demo(_: argparse.Namespace) -> int:
    """Run the loop as it is, then under ``%%grape``; print the report and whether the tokens are the same.

    Raises a `GrapeError` where a cell raised, there was no report, or the tokens differ.
    """
    folder = tempfile.mkdtemp(prefix="grape-demo-")
    os.environ.setdefault(REFERENCE, "1")  # without a GPU: how graphs behave, not how fast they are
    try:
        return _demo(_shell(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _demo(shell: InteractiveShell) -> int:
    import grape

    print("A decoder in plain PyTorch, random weights, a KV cache of fixed size, greedy decoding:\n", flush=True)
    print(textwrap.indent("%load_ext grape\n\n" + _MAGIC + _LOOP, "    "), flush=True)
    for source in ("%load_ext grape", _MODEL, _LOOP):
        _run(shell, source)
    plain = _tokens(shell)
    _run(shell, _LOOP)
    # Kernels of a GPU need not repeat themselves to the bit; what the plain loop does not repeat is no measure.
    again = _tokens(shell)
    repeats = next((i for i, (one, other) in enumerate(zip(plain, again, strict=True)) if one != other), len(plain))
    plain = plain[:repeats]
    before = grape.last
    _run(shell, _MAGIC + _LOOP)
    if grape.last is None or grape.last is before:
        raise _DemoFailed("the cell ran, but Grape made no report; see grape doctor")
    grape_tokens = _tokens(shell)
    same = sum(one == other for one, other in zip(plain, grape_tokens, strict=False))
    if same != len(plain):
        raise _DemoFailed(f"only {same} of {len(plain)} tokens are those of the plain loop; please report this")
    whole = repeats == len(grape_tokens)
    print(
        f"\nAll {repeats} tokens are those of the same loop without %%grape."
        if whole
        else f"\nThe {repeats} tokens that the loop repeats without %%grape are the same with it."
    )
    return 0


def _shell(folder: str) -> InteractiveShell:
    """An IPython shell that keeps its files in `folder` and shows reports as wide as the terminal."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    config.InteractiveShell.colors = "neutral" if color else "nocolor"
    shell = InteractiveShell.instance(ipython_dir=folder, config=config)
    width = max(40, min(shutil.get_terminal_size((100, 24)).columns, 120))

    def bundle(report: Report, **_: object) -> dict[str, str]:
        return {"text/plain": report.to_text(width=width, color=color)}

    formatter = shell.display_formatter
    assert formatter is not None
    formatter.mimebundle_formatter.for_type_by_name("grape.render.report", "Report", bundle)
    return shell


def _run(shell: InteractiveShell, source: str) -> None:
    result = shell.run_cell(source, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    if error is not None:
        raise _DemoFailed(f"a cell of the demo raised {type(error).__name__}; its traceback stands above")


def _tokens(shell: InteractiveShell) -> list[int]:
    return [int(token) for token in shell.user_ns["tokens"]]
