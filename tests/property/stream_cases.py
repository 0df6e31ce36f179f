"""Loops as people write them, on a device of choice: what each leaves behind is compared bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Case = Callable[[str], Any]


def state(net: nn.Module, optimizer: Any = None) -> list[Any]:
    left = [list(net.parameters()), list(net.buffers()), [p.grad for p in net.parameters()]]
    return [*left, optimizer.state_dict() if optimizer is not None else None]


def mlp(device: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)).to(device)


def batches(device: str, count: int, *shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    xs = torch.randn(count, *shape, generator=generator).to(device)
    return xs, torch.randint(0, 10, (count, shape[0]), generator=generator).to(device)


def mlp_sgd(device: str) -> Any:
    net, (xs, ys) = mlp(device), batches(device, 20, 16, 32)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for i in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(xs[i % 20]), ys[i % 20])
        loss.backward()
        optimizer.step()
    return [loss, state(net, optimizer)]


def mlp_adam_item(device: str) -> Any:
    net, (xs, ys), losses = mlp(device), batches(device, 20, 16, 32), []
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for i in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(xs[i % 20]), ys[i % 20])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [losses, state(net, optimizer)]


def double_backward(device: str) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    at, losses = torch.rand(64, 2).to(device).requires_grad_(), []
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(40):
        u = net(at)
        (du,) = torch.autograd.grad(u, at, torch.ones_like(u), create_graph=True)
        (ddu,) = torch.autograd.grad(du[:, :1], at, torch.ones_like(du[:, :1]), create_graph=True)
        loss = (du[:, 1:] + u * du[:, :1] - 0.01 * ddu[:, :1]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [losses, state(net, optimizer)]


def lstm_cell(device: str) -> Any:
    torch.manual_seed(0)
    net = nn.ModuleDict({"cell": nn.LSTMCell(16, 24), "head": nn.Linear(24, 10)}).to(device)
    xs, ys = batches(device, 12, 4, 16)
    optimizer, losses = torch.optim.Adam(net.parameters(), 1e-2), []
    for _ in range(40):
        h = c = torch.zeros(4, 24, device=device)
        loss = torch.zeros((), device=device)
        for k in range(12):
            h, c = net["cell"](xs[k], (h, c))
            loss = loss + F.cross_entropy(net["head"](h), ys[k])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [losses, state(net, optimizer)]


def conv_net(device: str) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1)),
        *(nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
    ).to(device)
    (xs, ys), losses = batches(device, 5, 8, 3, 16, 16), []
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for i in range(40):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(xs[i % 5]), ys[i % 5])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    net.eval()
    with torch.no_grad():
        return [losses, net(xs[0]), state(net, optimizer)]


def results_kept(device: str) -> Any:
    net, (xs, _), kept = mlp(device), batches(device, 20, 16, 32), []
    with torch.no_grad():
        for i in range(60):
            h = net[:2](xs[i % 20])
            out = net[2:](h)
            kept += [out, h[:2], out.argmax(1)] if i % 3 else [out.t()]
    return kept


def other_branch(device: str) -> Any:
    net, (xs, _), total = mlp(device), batches(device, 20, 16, 32), torch.zeros(16, 10, device=device)
    read = []
    with torch.no_grad():
        for i in range(90):
            y = net(xs[i % 20])
            if i % 7 == 6:
                y = y.exp().sub_(1).clamp_(max=3)
                total.mul_(0.5)
            total.add_(torch.tanh(y))
            if i % 5 == 4:
                read.append(total.sum().item())
    return [total, read]


class Stop(Exception):
    pass


def exceptions(device: str) -> Any:
    net, (xs, ys) = mlp(device), batches(device, 20, 16, 32)
    optimizer, log = torch.optim.SGD(net.parameters(), 0.05), []
    for i in range(60):
        try:
            optimizer.zero_grad()
            h = net[:3](xs[i % 20])
            if i % 11 == 10:
                raise Stop
            loss = F.cross_entropy(net[3:](h), ys[i % 20])
            if i % 13 == 12:
                h @ torch.ones(3, 3, device=device)
            loss.backward()
            optimizer.step()
            log.append(loss.item())
        except Stop:
            log.append(h.sum().item())
        except RuntimeError:
            log.append("shapes")
    return [log, state(net, optimizer)]


def dropout(device: str) -> Any:
    net, (xs, ys), losses = mlp(device), batches(device, 20, 16, 32), []
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    for i in range(50):
        optimizer.zero_grad()
        h = F.dropout(net[:2](xs[i % 20]), 0.3)
        loss = F.cross_entropy(net[2:](h + 0.01 * torch.randn_like(h)), ys[i % 20])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if i == 30:
            torch.manual_seed(5)
    return [losses, state(net, optimizer), torch.rand(3, device=device)]


def scalars_of_the_host(device: str) -> Any:
    """CPU tensors that operators of the device read, some of them changed behind the operator."""
    net, (xs, _), out = mlp(device), batches(device, 20, 16, 32), []
    scale, step = torch.tensor(0.5), torch.zeros(())
    with torch.no_grad():
        for i in range(60):
            y = net(xs[i % 20]) * scale
            step += 1
            y = y / step
            if i % 9 == 8:
                scale.mul_(0.9)
            out.append(y.to(device, copy=True).add_(torch.ones(10).to(device) * i))
    return [out, scale, step]


RAISES = {"exceptions": 4}
"""Operators of the person's that raise, by case: that many are run as written, and nothing else raises."""

CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        *(mlp_sgd, mlp_adam_item, double_backward, lstm_cell, conv_net, results_kept),
        *(other_branch, exceptions, dropout, scalars_of_the_host),
    )
}
