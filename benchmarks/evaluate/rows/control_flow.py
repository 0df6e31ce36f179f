"""Cells whose control flow follows the data. Of `_control_flow_cells.py`, where their source stands, and one more."""

from __future__ import annotations

from functools import partial
from typing import Any

from _control_flow_cells import PARTS, Part

from ..job import Group, Job, Size

__all__ = ["CONTROL_FLOW"]

CONTROL_FLOW = Group("control_flow", "Control flow that follows the data")
READS = "the host reads values in the middle; whoever writes graphs by hand writes another program"

DURATIONS = """\
import torch
from torch import nn

torch.manual_seed(0)


def place(module):
    return module.to(device, dtype).eval().requires_grad_(False)


encoder = place(nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width)))
embedding, cell = place(nn.Embedding(vocabulary, width)), place(nn.GRUCell(width, width))
joint = place(nn.Sequential(nn.Tanh(), nn.Linear(width, vocabulary + durations)))
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
        scores = joint(encoded[rows, time.clamp(max=frames - 1)] + state)
        label, duration = scores[:, :vocabulary].argmax(-1), scores[:, vocabulary:].argmax(-1)
        emit = active & (label != blank)
        place = count.clamp(max=longest - 1)
        labels[rows, place] = torch.where(emit, label, labels[rows, place])
        count = count + emit
        state = torch.where(emit[:, None], cell(embedding(label), state), state)
        time = time + torch.where(active, torch.where(emit, duration, duration.clamp(min=1)), 0)
        active = (time < frames) & (count < longest)
    return labels, count
"""

TDT = Part(
    name="durations",
    what="a transducer that predicts tokens and durations (TDT), greedy, a small random model",
    define=DURATIONS,
    use="with torch.no_grad():\n    result = [transcribe(audio) for audio in recordings]\n",
    sizes={
        **{"features": 80, "width": 320, "vocabulary": 128, "blank": 0, "durations": 5},
        **{"batch": 4, "frames": 128, "longest": 128, "calls": 8},
    },
    small={
        **{"features": 8, "width": 16, "vocabulary": 10, "blank": 0, "durations": 3},
        **{"batch": 3, "frames": 12, "longest": 24, "calls": 4},
    },
)
CALLS = {"a": 2, "b": 2, "c": 8, "d": 64, "e": 6, "tdt": 8}
"""Calls in a run: fewer than where these cells are measured alone."""
FUNCTIONS = {"a": "search", "b": "generate", "c": "solve", "d": "classify"}
"""What a person would compile; of the others `transcribe`."""


def cell_of(key: str, part: Part, size: Size) -> Job:
    names: dict[str, Any] = dict(part.small if size.quick else part.sizes)
    names |= {"device": size.device.type, "dtype": size.half, "calls": 3 if size.quick else CALLS[key]}
    cell = f"{part.use}results = result\n"
    return Job(
        names=names,
        first=part.define,
        cells=[cell],
        steps=names["calls"],
        fixed=True,
        function=FUNCTIONS.get(key, "transcribe"),
        by_hand=READS,
    )


for _key, _part in {**PARTS, "tdt": TDT}.items():
    _name = "_".join(_part.name.split())
    CONTROL_FLOW.add(_name, _part.what, partial(cell_of, _key, _part), ablations=("predication",))
