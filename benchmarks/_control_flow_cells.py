"""Five notebook cells whose control flow follows the data, as people write them. Nothing here knows of Grape.

Each part has a cell that defines models and functions and one that uses them and binds `result`. Before them a cell
runs that binds `device`, `dtype` and the sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["PARTS", "Part"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`sizes` are for a GPU, `small` for a test on the CPU."""

    name: str
    what: str
    define: str
    use: str
    sizes: dict[str, object] = field(default_factory=dict)
    small: dict[str, object] = field(default_factory=dict)


_DECODER = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, batch):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        shape = (batch, heads, longest, width // heads)
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def forward(self, x, position, mask):
        q, k, v = self.qkv(self.norm1(x)).view(x.shape[0], 1, 3, heads, -1).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, batch):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(batch) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("order", torch.arange(longest))

    def forward(self, token, position):
        mask = (self.order <= position)[None, None, None]
        x = self.words(token) + self.places(position)
        for block in self.blocks:
            x = block(x, position, mask)
        return F.linear(self.norm(x), self.words.weight)[:, -1]


"""

_BEAM = (
    _DECODER
    + """\
model = Decoder(beams).to(device, dtype).eval().requires_grad_(False)
prompts = [torch.randint(0, vocabulary, (1, 1), device=device) for _ in range(calls)]


def search(prompt, penalty=1.0):
    token = prompt.expand(beams, 1)
    text = torch.full((beams, longest), end, device=device)
    position = torch.zeros(1, dtype=torch.long, device=device)
    scores = torch.zeros(beams, device=device)
    scores[1:] = float("-inf")
    best_text = torch.full((beams, longest), end, device=device)
    best_scores = torch.full((beams,), float("-inf"), device=device)
    for _ in range(steps):
        chances = model(token, position).float().log_softmax(-1)
        top, index = (scores[:, None] + chances).flatten().topk(2 * beams)
        source, word = index // vocabulary, index % vocabulary
        continued = text[source].index_copy(1, position, word[:, None])
        length = (position + 1) ** penalty
        over = word == end
        if over.any():  # hypotheses that end here compete with the best that have ended so far
            candidates = torch.cat([best_scores, torch.where(over, top / length, float("-inf"))])
            best_scores, kept = candidates.topk(beams)
            best_text = torch.cat([best_text, continued])[kept]
        scores, going = top.masked_fill(over, float("-inf")).topk(beams)
        text, token, source = continued[going], word[going][:, None], source[going]
        for block in model.blocks:
            block.keys.copy_(block.keys[source])
            block.values.copy_(block.values[source])
        position += 1
        if best_scores[-1] > scores[0] / length:  # nothing that goes on can become better
            break
    return best_text, best_scores
"""
)

_GREEDY = (
    _DECODER
    + """\
model = Decoder(1).to(device, dtype).eval().requires_grad_(False)
prompts = [torch.randint(0, vocabulary, (1, 1), device=device) for _ in range(calls)]


def generate(token):
    text = torch.full((1, longest), end, device=device)
    position = torch.zeros(1, dtype=torch.long, device=device)
    for _ in range(steps):
        token = model(token, position).argmax(-1, keepdim=True)
        text.index_copy_(1, position, token)
        position += 1
        if (token == end).all():
            break
    return text
"""
)

_GRADIENT = """\
import torch

torch.manual_seed(0)
root = torch.randn(size, size, dtype=torch.float64)
matrix = (root @ root.T / size + torch.eye(size, dtype=torch.float64)).to(device)
sides = [torch.randn(size, dtype=torch.float64).to(device) for _ in range(calls)]


def solve(b, tolerance=1e-9):
    x = torch.zeros_like(b)
    r = b - matrix @ x
    p = r
    rho = r @ r
    while rho.sqrt() > tolerance:
        q = matrix @ p
        alpha = rho / (p @ q)
        x = x + alpha * p
        r = r - alpha * q
        rho_next = r @ r
        p = r + (rho_next / rho) * p
        rho = rho_next
    return x
"""

_CLASSIFIER = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def place(module):
    return module.to(device, dtype).eval().requires_grad_(False)


blocks = place(nn.ModuleList(Layer() for _ in range(layers)))
exits = place(nn.ModuleList(nn.Linear(width, classes) for _ in range(layers)))
inputs = [torch.randn(1, tokens, width).to(device, dtype) for _ in range(calls)]


def classify(x):
    for block, leave in zip(blocks, exits):
        x = block(x)
        chances = leave(x.mean(1)).float().softmax(-1)
        if chances.amax() > threshold:
            break
    return chances
"""

_TRANSDUCER = """\
import torch
from torch import nn

torch.manual_seed(0)


def place(module):
    return module.to(device, dtype).eval().requires_grad_(False)


encoder = place(nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width)))
embedding, cell = place(nn.Embedding(vocabulary, width)), place(nn.GRUCell(width, width))
joint = place(nn.Sequential(nn.Tanh(), nn.Linear(width, vocabulary)))
joint[1].bias[blank] += preference
recordings = [torch.randn(batch, frames, features).to(device, dtype) for _ in range(calls)]
rows = torch.arange(batch, device=device)


def transcribe(audio):
    encoded = encoder(audio)
    time = torch.zeros(batch, dtype=torch.long, device=device)
    count = torch.zeros(batch, dtype=torch.long, device=device)
    labels = torch.full((batch, longest), blank, device=device)
    state = cell(embedding(torch.full((batch,), blank, device=device)), torch.zeros_like(encoded[:, 0]))
    active = time < frames
    while active.any():
        label = joint(encoded[rows, time.clamp(max=frames - 1)] + state).argmax(-1)
        waiting = active & (label == blank)
        while waiting.any():  # look for the next label: only the time goes on
            time = time + waiting
            active = time < frames
            found = joint(encoded[rows, time.clamp(max=frames - 1)] + state).argmax(-1)
            label = torch.where(waiting, found, label)
            waiting = active & (label == blank)
        emit = active & (label != blank)
        place = count.clamp(max=longest - 1)
        labels[rows, place] = torch.where(emit, label, labels[rows, place])
        count = count + emit
        state = torch.where(emit[:, None], cell(embedding(label), state), state)
        active = (time < frames) & (count < longest)
    return labels, count
"""

_GPT2 = {"layers": 12, "width": 768, "heads": 12, "vocabulary": 50257, "end": 50256, "longest": 256, "steps": 256}
_TINY = {"layers": 2, "width": 32, "heads": 2, "vocabulary": 40, "end": 7, "longest": 32, "steps": 16}

PARTS = {
    "a": Part(
        name="beam search",
        what="GPT-2 124M, beam search in plain torch with bookkeeping of hypotheses and early stop",
        define=_BEAM,
        use="with torch.no_grad():\n    result = [search(prompt) for prompt in prompts]\n",
        sizes={**_GPT2, "beams": 5, "calls": 16, "longest": 128, "steps": 128},
        small={**_TINY, "beams": 3, "calls": 16},
    ),
    "b": Part(
        name="greedy decode",
        what="GPT-2 124M, greedy over a static cache, with an exit at the end of the sequence",
        define=_GREEDY,
        use="with torch.no_grad():\n    result = [generate(prompt) for prompt in prompts]\n",
        sizes={**_GPT2, "calls": 16},
        small={**_TINY, "calls": 20},
    ),
    "c": Part(
        name="conjugate gradient",
        what="conjugate gradient to a tolerance",
        define=_GRADIENT,
        use="result = [solve(side) for side in sides]\n",
        sizes={"size": 1024, "calls": 24},
        small={"size": 24, "calls": 16},
    ),
    "d": Part(
        name="early exit",
        what="a classifier of 12 blocks that leaves at the first confident exit",
        define=_CLASSIFIER,
        use="with torch.no_grad():\n    result = [classify(x) for x in inputs]\n",
        sizes={"layers": 12, "width": 384, "heads": 6, "classes": 10, "tokens": 64, "threshold": 0.17, "calls": 64},
        small={"layers": 12, "width": 16, "heads": 2, "classes": 4, "tokens": 4, "threshold": 0.42, "calls": 48},
    ),
    "e": Part(
        name="transducer",
        what="RNN transducer, greedy with label looping, a small random model",
        define=_TRANSDUCER,
        use="with torch.no_grad():\n    result = [transcribe(audio) for audio in recordings]\n",
        sizes={
            **{"features": 80, "width": 320, "vocabulary": 128, "blank": 0, "preference": 0.6},
            **{"batch": 4, "frames": 128, "longest": 128, "calls": 24},
        },
        small={
            **{"features": 8, "width": 16, "vocabulary": 10, "blank": 0, "preference": 0.3},
            **{"batch": 3, "frames": 12, "longest": 24, "calls": 16},
        },
    ),
}
