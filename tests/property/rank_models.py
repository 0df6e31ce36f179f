"""Ways of torch to spread a model over ranks: each case returns what it leaves."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from tests.property.rank_cases import STEPS, batch, mlp, trained


def hooks_in_c() -> list[Any]:
    """Their callbacks run on the backend's thread, too."""
    left: list[Any] = []
    for kind in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
        model = DistributedDataParallel(mlp(), bucket_cap_mb=0.0005)  # type: ignore[arg-type]
        model._register_builtin_comm_hook(kind)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        left += trained(model, optimizer, lambda step, model=model: model(batch(step)).square().mean())  # type: ignore[misc]
    return left


def local_steps() -> list[Any]:
    model = DistributedDataParallel(mlp())
    state = PostLocalSGDState(process_group=None, subgroup=dist.new_subgroups(1)[0], start_localSGD_iter=5)
    model.register_comm_hook(state, post_localSGD_hook)
    inner, averager = torch.optim.SGD(model.parameters(), 0.05), PeriodicModelAverager(period=3, warmup_steps=5)
    optimizer = PostLocalSGDOptimizer(optim=inner, averager=averager)
    return trained(model, optimizer, lambda step: model(batch(step)).square().mean())


def sharded_in_lower_precision() -> list[Any]:
    """With gradients that add up before they are reduced, and parameters that stay gathered."""
    left: list[Any] = []
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for stays in (False, True):
        model: Any = mlp()
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for part in (model[0], model[2], model):
            fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=not stays)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        for step in range(STEPS):
            optimizer.zero_grad()
            for micro in range(2):
                model.set_requires_gradient_sync(micro == 1)
                loss = model(batch(2 * step + micro)).float().square().mean()
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            left.append(loss.detach())
        left += [p.to_local() for p in model.parameters()]
    return left


def tensors_cut_by_sequence() -> list[Any]:
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    plan = {
        "0": SequenceParallel(),
        "1": ColwiseParallel(input_layouts=Shard(1)),
        "3": RowwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, plan)
    head = nn.Linear(8, 12)
    parallelize_module(head, mesh, ColwiseParallel(use_local_output=False))
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01, foreach=False)
    left: list[Any] = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        x, y = (
            torch.randn(2, 4, 8, generator=generator),
            torch.randint(12, (8 * dist.get_world_size(),), generator=generator),
        )
        optimizer.zero_grad()
        with loss_parallel():
            loss = nn.functional.cross_entropy(head(model(x).flatten(0, 1)), y)
            loss.backward()
        optimizer.step()
        left.append(loss.detach().full_tensor() if hasattr(loss, "full_tensor") else loss.detach())
    return left + [p.to_local() if hasattr(p, "to_local") else p for p in parameters]


def decoding_without_gradients() -> list[Any]:
    """Under inference mode collectives take tensors without a version."""
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    left: list[Any] = []
    with torch.inference_mode():
        x = torch.linspace(-1, 1, 32).view(4, 8)
        for step in range(STEPS):
            y = (x * 0.5).tanh() + dist.get_rank()
            dist.all_reduce(y)
            x = (y * 0.3 + step % 3).sin()
            left += [x, x.argmax(-1)]
    with torch.no_grad():
        x = torch.linspace(-1, 1, 32).view(4, 8)
        for _ in range(STEPS):
            x = model(x).tanh()
            left.append(x)
    return left


def memory_that_is_shared() -> list[Any]:
    """Other processes may map it: nothing that touches it is deferred."""
    shared, left = torch.zeros(16).share_memory_(), []
    a = torch.ones(16) * dist.get_rank()
    for step in range(STEPS):
        shared.copy_((a * 0.5).tanh())
        dist.all_reduce(shared)
        a = (shared + a * 0.1 + step % 2).clamp(-2, 2)
        left.append(a)
    return left


def a_backward_on_a_thread() -> list[Any]:
    """The person's thread trains one model while the main one trains another, in groups of their own."""
    groups, left = [dist.new_group(), dist.new_group()], [[], []]  # type: ignore[var-annotated]

    def train(n: int) -> None:
        torch.manual_seed(n)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), process_group=groups[n])
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        left[n] += trained(model, optimizer, lambda step: model(batch(step)).square().mean())

    train(0)
    thread = threading.Thread(target=train, args=(1,))
    thread.start()
    x = torch.ones(16)
    for _ in range(200):
        x = (x * 0.5).tanh() + 1
    thread.join()
    return [left, x]


def scattered_and_reduced_in_lists() -> list[Any]:
    left, world, a = [], dist.get_world_size(), torch.ones(16) * (1 + dist.get_rank())
    for step in range(STEPS):
        parts = [(a * (k + 1)).tanh() for k in range(world)]
        out = torch.empty(16)
        work = dist.reduce_scatter(out, parts, async_op=True)
        meanwhile: Tensor = a * 0.5
        work.wait()
        into = [torch.empty(16) for _ in range(world)]
        dist.all_to_all(into, [out + k for k in range(world)])
        a = (torch.stack(into).mean(0) + meanwhile).clamp(-2, 2) * (1 if step % 3 else 0.5)
        left.append(a)
    return left
