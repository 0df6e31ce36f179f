"""Notebook cells that train, as people write them. Nothing here knows of Grape.

Each part has a cell that makes the model, its data and a function `train`, and `USE`, which runs and runs again. Before
them a cell runs that binds `device` and the sizes. `loader` is what the loop of `train` iterates over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["PARTS", "USE", "Part"]

USE = "losses = train(loader)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`sizes` are for a GPU, `small` for a test on the CPU.

    `optimizer` is the line that makes it, `fused` the same with the numbers of each step on the device, as GR403
    advises: a variant that trains to other last bits, and is compared with itself only. `modules` are compiled in the
    variant `compile`.
    """

    name: str
    what: str
    define: str
    optimizer: str
    modules: tuple[str, ...] = ("model",)
    sizes: dict[str, object] = field(default_factory=dict)
    small: dict[str, object] = field(default_factory=dict)

    @property
    def fused(self) -> str:
        """The optimizer's line with `fused=True`."""
        return f"{self.optimizer.rstrip()[:-1]}, fused=True)"


_HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
"""

_SPEECH = (
    _HEAD
    + '''\
torch.backends.cudnn.deterministic = True
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC
from transformers.modeling_outputs import BaseModelOutput


class Encoder(nn.Module):
    """The library's encoder without LayerDrop, for which that draws a number on the CPU at each layer."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, hidden, **others):
        hidden = self.encoder.dropout(self.encoder.layer_norm(hidden + self.encoder.pos_conv_embed(hidden)))
        for layer in self.encoder.layers:
            hidden = layer(hidden)
        return BaseModelOutput(last_hidden_state=hidden)


config = Wav2Vec2Config(apply_spec_augment=False, layerdrop=0.0, **sizes)
model = Wav2Vec2ForCTC(config)
if not draws:
    model.wav2vec2.encoder = Encoder(model.wav2vec2.encoder)
model.to(device).train()
{optimizer}
scaler = torch.amp.GradScaler(device)


def samples(n):
    for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride)):
        n = (n - 1) * stride + kernel
    return n


frames = torch.linspace(shortest, longest, lengths).round().long().tolist()
clips = [torch.randn(batch, samples(n), device=device) for n in frames]
texts = [torch.randint(0, config.vocab_size, (batch, n), device=device) for n in frames]
order = torch.cat([torch.randperm(lengths) for _ in range(1 + steps // lengths)])[:steps].tolist()
loader = [(clips[index], texts[index]) for index in order]


def train(loader):
    losses = []
    for clip, text in loader:
        optimizer.zero_grad()
        with torch.autocast(device, getattr(torch, amp)):
            logits = model(clip).logits
            loss = F.cross_entropy(logits.flatten(0, 1).float(), text.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return torch.stack(losses)
'''
)

_GPT2 = (
    _HEAD
    + """\
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(**sizes)).to(device).train()
{optimizer}
corpus = torch.randint(0, model.config.vocab_size, (32, batch, tokens), device=device)
loader = [corpus[step % 32] for step in range(steps)]


def train(loader):
    losses = []
    for text in loader:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            logits = model(text).logits[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1).float(), text[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)
"""
)

_SUPERVISED = """\
def train(loader):
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)
"""

_CNN = (
    _HEAD
    + """\
torch.backends.cudnn.deterministic = True


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.norm2(self.second(torch.relu(self.norm1(self.first(x))))))


stem = [nn.Conv2d(3, channels, 3, stride=2, padding=1), nn.ReLU()]
head = [nn.AvgPool2d(side // 2), nn.Flatten(), nn.Linear(channels, 10)]
model = nn.Sequential(*stem, *[Block(channels) for _ in range(blocks)], *head).to(device)
{optimizer}
images = torch.randn(16, batch, 3, side, side, device=device)
labels = torch.randint(0, 10, (16, batch), device=device)
loader = [(images[step % 16], labels[step % 16]) for step in range(steps)]


"""
    + _SUPERVISED
)

_MLP = (
    _HEAD
    + """\
layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))]
model = nn.Sequential(*layers, nn.Linear(width, 10)).to(device)
{optimizer}
points = torch.randn(16, batch, width, device=device)
labels = torch.randint(0, 10, (16, batch), device=device)
loader = [(points[step % 16], labels[step % 16]) for step in range(steps)]


"""
    + _SUPERVISED
)

_GRAPH = (
    _HEAD
    + """\
torch.utils.deterministic.fill_uninitialized_memory = False
torch.use_deterministic_algorithms(True)  # sums over edges in a fixed order


class GraphNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.messages = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(layers)])
        self.updates = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(layers)])
        self.head = nn.Linear(width, 1)

    def forward(self, x, edges):
        source, target = edges
        for message, update in zip(self.messages, self.updates):
            sent = torch.relu(message(torch.cat([x[source], x[target]], 1)))
            x = x + torch.relu(update(torch.cat([x, torch.zeros_like(x).index_add(0, target, sent)], 1)))
        return self.head(x).squeeze(1)


model = GraphNetwork().to(device)
{optimizer}
counts = torch.randint(2 * nodes, 8 * nodes, (graphs,)).tolist()
kept = [
    (
        torch.randn(nodes, width, device=device),
        torch.randint(0, nodes, (2, count), device=device),
        torch.randn(nodes, device=device),
    )
    for count in counts
]
loader = [kept[step % graphs] for step in range(steps)]


def train(loader):
    losses = []
    for x, edges, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x, edges), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)
"""
)

_POLICY = (
    _HEAD
    + """\
import numpy as np


class Carts:
    \"\"\"Poles on carts, many at once, on the CPU.\"\"\"

    def reset(self):
        self.state = np.zeros((carts, 4))
        self.state[:, 2] = np.linspace(-0.05, 0.05, carts)
        return self.state.astype(np.float32)

    def step(self, action):
        x, v, angle, spin = self.state.T
        push = np.where(action == 1, 10.0, -10.0) + 0.05 * spin**2 * np.sin(angle)
        turn = (9.8 * np.sin(angle) - np.cos(angle) * push / 1.1) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        pull = push / 1.1 - 0.05 * turn * np.cos(angle) / 1.1
        self.state = np.stack([x + 0.02 * v, v + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * turn], 1)
        upright = np.abs(self.state[:, 2]) < 0.2
        self.state[~upright] = 0.0
        return self.state.astype(np.float32), upright.astype(np.float32)


hidden = [layer for _ in range(2) for layer in (nn.Linear(width, width), nn.Tanh())]
model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), *hidden, nn.Linear(width, 2)).to(device)
{optimizer}
environment = Carts()
loader = range(steps)


def act(seen):
    with torch.no_grad():
        chances = model(seen).softmax(-1)
        return torch.multinomial(chances, 1).squeeze(1)


def learn(seen, actions, gains):
    optimizer.zero_grad()
    chances = model(seen).log_softmax(-1).gather(-1, actions[..., None]).squeeze(-1)
    loss = -(chances * (gains - gains.mean()) / (gains.std() + 1e-6)).mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def train(loader):
    losses = []
    for episode in loader:
        state, states, actions, rewards = environment.reset(), [], [], []
        for _ in range(horizon):
            seen = torch.from_numpy(state).to(device)
            action = act(seen)
            states.append(seen)
            actions.append(action)
            state, reward = environment.step(action.cpu().numpy())
            rewards.append(reward)
        gains = np.flip(np.cumsum(np.flip(np.stack(rewards), 0), 0), 0).copy()
        losses.append(learn(torch.stack(states), torch.stack(actions), torch.from_numpy(gains).to(device)))
    return torch.stack(losses)
"""
)

_TINY_SPEECH = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "conv_dim": (4, 4),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}

PARTS: dict[str, Part] = {
    "speech": Part(
        name="Wav2Vec2-base, AMP fp16",
        what="(a) encoder lengths from 65 to 199 frames, shuffled, no LayerDrop; surrogate: cross entropy per frame",
        define=_SPEECH,
        optimizer="optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)",
        sizes={
            "batch": 8,
            "lengths": 119,
            "shortest": 65,
            "longest": 199,
            "steps": 300,
            "amp": "float16",
            "draws": False,
            "sizes": {},
        },
        small={
            "batch": 2,
            "lengths": 2,
            "shortest": 4,
            "longest": 9,
            "steps": 64,
            "amp": "bfloat16",
            "draws": False,
            "sizes": _TINY_SPEECH,
        },
    ),
    "speech-draws": Part(
        name="Wav2Vec2-base, AMP fp16",
        what="(a) the same with the library's encoder, which draws numbers for LayerDrop on the CPU",
        define=_SPEECH,
        optimizer="optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)",
        sizes={
            "batch": 8,
            "lengths": 119,
            "shortest": 65,
            "longest": 199,
            "steps": 300,
            "amp": "float16",
            "draws": True,
            "sizes": {},
        },
        small={
            "batch": 2,
            "lengths": 2,
            "shortest": 4,
            "longest": 9,
            "steps": 64,
            "amp": "bfloat16",
            "draws": True,
            "sizes": _TINY_SPEECH,
        },
    ),
    "gpt2": Part(
        name="GPT-2 124M",
        what="(b) fine-tuning, AMP bf16, gradients clipped",
        define=_GPT2,
        optimizer="optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)",
        sizes={"batch": 4, "tokens": 128, "steps": 100, "sizes": {}},
        small={
            "batch": 2,
            "tokens": 8,
            "steps": 36,
            "sizes": {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 32, "bos_token_id": 0, "eos_token_id": 1},
        },
    ),
    "cnn": Part(
        name="small CNN",
        what="(c) residual network, images of 32 x 32",
        define=_CNN,
        optimizer="optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)",
        sizes={"batch": 32, "channels": 32, "blocks": 8, "side": 32, "steps": 200},
        small={"batch": 2, "channels": 4, "blocks": 1, "side": 8, "steps": 48},
    ),
    "mlp": Part(
        name="MLP",
        what="(c) linear layers, GELU, dropout",
        define=_MLP,
        optimizer="optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)",
        sizes={"batch": 64, "width": 256, "depth": 12, "steps": 300},
        small={"batch": 4, "width": 8, "depth": 2, "steps": 48},
    ),
    "graph": Part(
        name="graph neural network",
        what="(d) another number of edges in each graph",
        define=_GRAPH,
        optimizer="optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)",
        sizes={"nodes": 512, "width": 64, "layers": 4, "graphs": 40, "steps": 240},
        small={"nodes": 8, "width": 4, "layers": 1, "graphs": 3, "steps": 36},
    ),
    "policy": Part(
        name="policy gradient",
        what="(e) carts with poles; the environment steps on the CPU",
        define=_POLICY,
        optimizer="optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)",
        sizes={"carts": 64, "width": 128, "horizon": 60, "steps": 30},
        small={"carts": 4, "width": 8, "horizon": 5, "steps": 30},
    ),
}
