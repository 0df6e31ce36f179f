"""What runs below a mode of Grape's is what plain code runs: the same bits, from the same base operators.

torch itself does not promise that. Below a mode it excludes the keys of autocast, conjugate views and version counters,
so that operators which are made of others are made otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # it wraps functions of torch for good
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from grape.model import Trace
from grape.runtime.backends.cuda.watch import CaptureWatch
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.capture.running.lockstep import Lockstep
from grape.runtime.capture.running.rehearsal import _Recording as Rehearsing
from grape.runtime.pipelines.sharing import Touched
from grape.runtime.predication.lowering.writes import WriteMode
from grape.runtime.predication.survey import _Recording as Surveying
from grape.tracing import OwnMode, PositionFinder, Recorder, Tracer, issue, record

from ..processes import lines_of

CPU = torch.device("cpu")


class World:
    """Tensors as models have them: parameters, and activations that were turned round."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.x = torch.randn(2, 8, 16)
        self.turned = torch.randn(8, 2, 16).transpose(0, 1)
        self.image = torch.randn(2, 6, 6, 4).permute(0, 3, 1, 2)
        self.many = torch.randn(2, 4, 3, 16).transpose(1, 2)
        self.weight = nn.Parameter(torch.randn(16, 24))
        self.complex = torch.randn(5, 3, dtype=torch.complex64)
        self.linear, self.norm = nn.Linear(16, 24), nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True).eval()
        self.recurrent = nn.GRU(16, 8, batch_first=True)
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.batch_norm = nn.BatchNorm2d(4).eval()
        self.mask = torch.triu(torch.full((8, 8), float("-inf")), 1)

    def attend(self, **options: Any) -> Any:
        return self.attention(self.turned, self.turned, self.turned, attn_mask=self.mask, **options)


PROGRAMS: dict[str, Callable[[World], Any]] = {
    "linear": lambda w: w.linear(w.turned),
    "linear of four dimensions": lambda w: w.linear(w.many),
    "matmul": lambda w: torch.matmul(w.turned, w.weight),
    "matmul from the left": lambda w: torch.matmul(w.weight.t(), w.turned.transpose(1, 2)),
    "matmul of two parts": lambda w: w.many @ w.many.transpose(-1, -2),
    "einsum": lambda w: torch.einsum("btd,de->bte", w.turned, w.weight),
    "einsum of three": lambda w: torch.einsum("btd,de,bse->bts", w.turned, w.weight, w.linear(w.x)),
    "tensordot": lambda w: torch.tensordot(w.turned, w.weight, dims=([2], [0])),
    "attention": lambda w: w.attend(need_weights=False)[0],
    "attention with weights": lambda w: w.attend(need_weights=True),
    "scaled dot product": lambda w: F.scaled_dot_product_attention(w.many, w.many, w.many, is_causal=True),
    "masked dot product": lambda w: F.scaled_dot_product_attention(w.turned, w.turned, w.turned, attn_mask=w.mask),
    "layer norm": lambda w: w.norm(w.many),
    "layer norm of views": lambda w: F.layer_norm(w.turned.chunk(2, -1)[0], (8,)),
    "group norm": lambda w: F.group_norm(w.image, 2),
    "batch norm": lambda w: w.batch_norm(w.image),
    "instance norm": lambda w: F.instance_norm(w.image),
    "convolution": lambda w: w.conv(w.image),
    "recurrent": lambda w: w.recurrent(w.turned)[0],
    "bilinear": lambda w: F.bilinear(w.turned, w.x, w.weight[:, :16].expand(4, 16, 16)),
    "distance": lambda w: torch.cdist(w.turned, w.x, compute_mode="use_mm_for_euclid_dist"),
    "similarity": lambda w: F.cosine_similarity(w.turned, w.x, dim=-1),
    "chunks": lambda w: [one * 2 for one in w.weight.chunk(3, 1)],
    "narrowed": lambda w: w.weight.narrow(1, 2, 8) @ w.weight.narrow(1, 2, 8).t(),
    "matmul into": lambda w: torch.matmul(w.turned, w.weight.detach(), out=torch.empty(0)),
    "multi dot": lambda w: torch.linalg.multi_dot([w.weight.t(), w.weight, w.weight.t()]),
    "outer and inner": lambda w: torch.inner(w.turned, w.weight.t()) + torch.kron(w.weight[0], w.weight[1]).mean(),
    "loss": lambda w: F.cross_entropy(w.linear(w.turned).flatten(0, 1), torch.arange(16)),
    "data": lambda w: w.weight.data * 2,
    "lists": lambda w: torch._foreach_mul([w.weight, w.x], 0.5),
    "complex inverse": lambda w: torch.linalg.pinv(w.complex),
    "complex covariance": lambda w: torch.cov(w.complex),
    "conjugate": lambda w: torch.einsum("ij,ik->jk", w.complex.conj(), w.complex),
}
NOT_CAPTURED = {"chunks", "narrowed", "data"}
CAST_IN_THE_KERNEL = {"bilinear"}
"""The tape runs kernels without autocast, and is refused where its bits differ."""


def states() -> dict[str, Callable[[], Any]]:
    def both(*made: Callable[[], Any]) -> Callable[[], Any]:
        @contextlib.contextmanager
        def entered() -> Iterator[None]:
            with contextlib.ExitStack() as stack:
                for one in made:
                    stack.enter_context(one())
                yield

        return entered

    def cast() -> Any:
        return torch.autocast("cpu", torch.bfloat16, cache_enabled=False)

    modes = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}
    return {**modes, **{f"{name}, autocast": both(made, cast) for name, made in modes.items()}}


def passing(trace: Trace) -> None: ...


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    yield


def below_tracer(call: Callable[[], Any]) -> Any:
    return record(Tracer(PositionFinder()), CPU, [], call)[0]


def below_lockstep(call: Callable[[], Any]) -> Any:
    torch.manual_seed(3)
    _, reference, _ = record(Tracer(PositionFinder()), CPU, [], call, keep=True)
    with Lockstep(reference, Recorder(CPU), PositionFinder(), {}, {}) as mode:
        result = call()
    mode.finish()
    return result


class _Request:
    tracer = Tracer(PositionFinder())


def below_rehearsal(call: Callable[[], Any]) -> Any:
    with Rehearsing(Recorder(CPU), _Request):  # type: ignore[arg-type]
        return call()


def below_survey(call: Callable[[], Any]) -> Any:
    with Surveying(Recorder(CPU), PositionFinder()):
        return call()


def below_watch(call: Callable[[], Any]) -> Any:
    with CaptureWatch(CPU):
        return call()


def below_writes(call: Callable[[], Any]) -> Any:
    with WriteMode(strict=False):
        return call()


def below_looking(call: Callable[[], Any]) -> Any:
    return Touched().look(call, ())


def below_all(call: Callable[[], Any]) -> Any:
    with CaptureWatch(CPU), WriteMode(strict=False), Surveying(Recorder(CPU), PositionFinder()):
        return below_looking(call)


MODES = [
    below_tracer,
    below_lockstep,
    below_rehearsal,
    below_survey,
    below_watch,
    below_writes,
    below_looking,
    below_all,
]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if one is None:
        return other is None
    assert one.dtype == other.dtype and one.stride() == other.stride() and one.requires_grad == other.requires_grad
    with torch.no_grad():
        return torch.equal(one.detach().resolve_conj(), other.detach().resolve_conj())


ASKED_FOR_MODES = {"aten::_reshape_alias": "aten::view", "aten::add_": "aten::add"}
"""Composite operators ask whether there is a mode, and take the other one of these, which computes the same."""
NO_WORK = {"aten::detach", "aten::resize_"}
"""What autograd saves is detached by an operator below modes only."""


def base_operators(call: Callable[[], Any]) -> list[str]:
    """The operators that are made of no others."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    events = [one for one in profile.profiler.kineto_results.events() if one.name().startswith("aten::")]
    spans = sorted((one.start_ns(), -one.end_ns(), one.name()) for one in events if one.name() not in NO_WORK)
    after = [*spans[1:], (spans[-1][0], -spans[-1][1] + 1, "")]
    names = [name for (_, end, name), (begin, *_) in zip(spans, after, strict=True) if begin >= -end]
    return [ASKED_FOR_MODES.get(name, name) for name in names]


@pytest.mark.parametrize("state", states())
@pytest.mark.parametrize("mode", MODES)
def test_the_bits_are_those_of_plain_code(mode: Callable[..., Any], state: str) -> None:
    world, differ = World(), []
    with states()[state]():
        for name, program in PROGRAMS.items():
            plain = program(world)
            if not same(plain, mode(lambda program=program: program(world))):
                differ.append(name)
    assert differ == []


@pytest.mark.parametrize("state", states())
@pytest.mark.parametrize("mode", [below_tracer, below_all])
def test_the_base_operators_are_those_of_plain_code(mode: Callable[..., Any], state: str) -> None:
    world, differ = World(), {}
    with states()[state]():
        for name, program in PROGRAMS.items():
            if name == "recurrent" and state.startswith("grad"):
                continue  # autograd clones in front of `mul_`, which is then no leaf of a plain profile
            program(world)
            plain = base_operators(lambda program=program: program(world))
            below = base_operators(lambda program=program: mode(lambda: program(world)))
            if plain != below:
                differ[name] = (plain, below)
    assert differ == {}


@pytest.mark.parametrize("state", ["no_grad", "inference", "no_grad, autocast", "inference, autocast"])
def test_a_replay_has_the_bits_of_plain_code(state: str) -> None:
    backend, world, differ = ReferenceBackend(), World(), []
    with states()[state]():
        for name, program in PROGRAMS.items():
            plain = program(world)
            if (
                name in NOT_CAPTURED
                or ("autocast" in state and name in CAST_IN_THE_KERNEL)
                or any(one.is_complex() for one in [plain] if isinstance(one, torch.Tensor))
            ):
                continue
            graph, result = backend.capture(lambda program=program: program(world))
            graph.replay()
            if not same(plain, result):
                differ.append(name)
            graph.release()
    backend.close()
    assert differ == []


FAILS_BELOW_A_MODE = {"einsum of three"}
"""Under autocast, in inference mode, without Grape."""


class Persons(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Below(OwnMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return issue(func, args, kwargs or {})


@pytest.mark.parametrize("outermost", [Below, nothing])
@pytest.mark.parametrize("state", ["no_grad", "inference", "inference, autocast"])
def test_below_a_mode_of_the_person_operators_run_as_below_that_alone(state: str, outermost: Any) -> None:
    """What torch's own handler makes of `matmul` in inference mode is not what plain code makes of it."""
    world = World()
    with states()[state]():
        for name, program in PROGRAMS.items():
            if "autocast" in state and name in FAILS_BELOW_A_MODE:
                continue
            with Persons():
                alone = base_operators(lambda program=program: program(world))
            with outermost(), Persons():
                beside = base_operators(lambda program=program: program(world))
            with Persons(), outermost():
                above = base_operators(lambda program=program: program(world))
            assert beside == alone and above == alone


def test_numbers_come_to_operators_that_take_tensors_as_such() -> None:
    """TorchScript's constants are tensors that stand for numbers; a mode is given the numbers."""
    for number, dtype in ((2, torch.int64), (2.5, torch.float64), (True, torch.bool), (1j, torch.complex128)):
        made = given(torch.ops.aten.view.default, number, [1])
        assert isinstance(made, torch.Tensor) and made.dtype == dtype and made.shape == (1,)
    assert given(torch.ops.aten.isclose.default, 2, 2) == torch.tensor(True)
    assert given(torch.ops.aten.mul.Tensor, torch.ones(2, dtype=torch.int32), 2.5).dtype == torch.float32


@pytest.mark.parametrize("mode", MODES)
def test_forward_derivatives_multiply_by_numbers(mode: Callable[..., Any]) -> None:
    """torch has some of them in Python, of `prims`: they take numbers for tensors, and mix no types."""
    derivative, x = torch.func.hessian(lambda x: (((x + 3.0) % 2.5 - 1.5) ** 2).sum()), torch.tensor([3.0, 1.0])
    assert same(derivative(x), mode(lambda: derivative(x)))


def given(function: Any, *args: Any) -> Any:
    """What `issue` makes of arguments that a mode was given."""
    made = []

    class Given(OwnMode):
        def __torch_dispatch__(self, func: Any, types: Any, others: Any = (), kwargs: Any = None) -> Any:
            made.append(issue(function, args, {}))
            return func(*others)

    with Given():
        torch.ones(()).neg()
    return made[-1]


INTERRUPTED = """
import signal, time
import torch
from grape.tracing import OwnMode, issue
class Below(OwnMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return issue(func, args, kwargs or {})
class Stop(Exception): ...
def stop(*event): raise Stop
net, x = torch.nn.Linear(4, 4), torch.ones(2, 3, 4).transpose(0, 1)
plain, stopped = [net(x), net(x).sum()], 0
signal.signal(signal.SIGALRM, stop)
ends = time.monotonic() + 2
while time.monotonic() < ends:
    try:
        with Below():
            signal.setitimer(signal.ITIMER_REAL, 0.0002)
            while True:
                net(x).sum()
    except Stop:
        stopped += 1
signal.setitimer(signal.ITIMER_REAL, 0)
with torch.inference_mode(), Below():
    assert torch.equal(net(x), plain[0]) and torch.equal(net(x).sum(), plain[1])
assert torch.equal(net(x), plain[0]) and stopped > 100, stopped
print("ended")
"""


def test_what_a_signal_handler_raises_anywhere_leaves_torch_as_it_was() -> None:
    """In a process of its own, for torch ends one whose record of the keys is lost."""
    assert lines_of(INTERRUPTED)[-1] == "ended"
