"""Faults at every place of a training loop under operator streams: what is left is what eager code leaves behind the
same fault, also in the iterations that follow. Nothing is lost, and nothing is done twice.

A place is before or behind a call of torch, in a loss, a hook or an optimizer, and before or behind a node of a
backward. Few of them are drawn, with a fixed seed; `--grape-random N` goes through all. So are captures that fail, or
are interrupted, and memory that ends.
"""

from __future__ import annotations

import random
import resource
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from grape import native
from grape.streams import Evidence, Settings, Stream, open_stream, session
from tests.processes import give_back_at_once, in_a_fork, lines_of_an_interpreter
from tests.property.stream_programs import device, flat, needs_compiler  # noqa: F401

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]

ITERATIONS = 16
PLACES = 8  # that are drawn, of each kind
SERVED = 12  # an iteration in which everything is deferred, and captured where that is pretended


class Stop(Exception):
    pass


def stop() -> None:
    raise Stop


def interrupt() -> None:
    raise KeyboardInterrupt


def wrong_operator() -> None:
    torch.ones(2, 3).mm(torch.ones(2, 3))


class Faults(TorchFunctionMode):
    """Does something at one place of those that are passed in iteration `at`; -1: in all of them."""

    def __init__(self, fault: Callable[[], object] = lambda: None, place: int = -1, at: int = SERVED) -> None:
        super().__init__()
        self.fault, self.place, self.at = fault, place, at
        self.passed, self.inside = 0, False

    def __enter__(self) -> Any:
        self.inside = True
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        self.inside = False
        super().__exit__(*raised)

    def pass_by(self, *_: Any) -> None:
        if not self.inside:
            return
        self.passed += 1
        if self.passed - 1 == self.place:
            with torch._C.DisableTorchFunction():
                self.fault()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A fault behind `_set_grad_enabled` is one in `no_grad.__enter__`, whose `__exit__` nobody calls.
        if getattr(func, "__name__", "") in ("__get__", "__set__", "_set_grad_enabled"):
            return func(*args, **(kwargs or {}))
        self.pass_by()
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.grad_fn is not None:
            result.grad_fn.register_prehook(self.pass_by)
            result.grad_fn.register_hook(self.pass_by)
        self.pass_by()
        return result


class Loop:
    """Training as people write it; a fault ends an iteration, and the loop goes on."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, 3)
        self.average = [p.detach().clone() for p in self.net.parameters()]
        self.adam = torch.optim.Adam(self.net.parameters(), 0.01, foreach=True)
        self.sgd = torch.optim.SGD(self.head.parameters(), 0.05, momentum=0.9)
        self.xs, self.ys = torch.randn(4, 6, 8), torch.randint(0, 3, (4, 6))
        self.count, self.seen = torch.zeros(3), torch.ones(6, 8)
        self.kept: list[Any] = []
        self.log: list[Any] = []
        for p in self.parameters():
            p.register_hook(faults.pass_by)
            p.register_post_accumulate_grad_hook(faults.pass_by)

    def parameters(self) -> list[nn.Parameter]:
        return [*self.net.parameters(), *self.head.parameters()]

    def step(self, i: int) -> None:
        self.count.add_(1)
        h = self.net(self.xs[i % 4] + 0.1 * self.seen)
        h.register_hook(lambda g: g * 0.5)
        self.seen = h.detach()
        loss = F.cross_entropy(self.head(h), self.ys[i % 4])
        self.count[0].mul_(0.5)
        (loss / 2).backward(retain_graph=True)
        (loss / 2).backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.adam.step()
        self.sgd.step()
        self.kept.append([loss.detach(), h[:1]])
        self.adam.zero_grad()
        self.sgd.zero_grad(set_to_none=False)
        torch._foreach_lerp_(self.average, [p.detach() for p in self.net.parameters()], 0.1)
        self.log.append(loss.item())
        self.count.add_(1)

    def run(self) -> list[Any]:
        for i in range(ITERATIONS):
            try:
                if self.faults.at in (i, -1):
                    with self.faults:
                        self.step(i)
                else:
                    self.step(i)
            except (Stop, KeyboardInterrupt, RuntimeError) as error:
                self.log.append(type(error).__name__)
        left = [self.net.state_dict(), self.head.state_dict(), self.adam.state_dict(), self.sgd.state_dict()]
        return flat(
            [*left, [p.grad for p in self.parameters()], self.average, self.count, self.seen, self.kept, self.log]
        )


EAGER_TO_MATCH = Settings(shortest=8, hot=2, settled=0, patience=0, price=0, doubt=0, longest=30)


def places() -> int:
    faults = Faults()
    Loop(faults).run()
    return faults.passed


def served(faults: Faults, capture: Callable[[Stream], object] | None = None, **options: Any) -> tuple[Any, Evidence]:
    stream = open_stream(replace(EAGER_TO_MATCH, **options))
    assert isinstance(stream, Stream), stream
    if capture is not None:
        stream._session.on_capture(lambda: capture(stream))
    with stream:
        result = Loop(faults).run()
    return result, stream.evidence()


def agrees(fault: Callable[[], object], place: int, at: int, **options: Any) -> Evidence:
    plain = Loop(Faults(fault, place, at)).run()
    result, evidence = served(Faults(fault, place, at), **options)
    different = [n for n, (a, b) in enumerate(zip(plain, result, strict=True)) if a != b]
    assert not different, f"place {place} of iteration {at} differs at {different[:5]}: {evidence}"
    return evidence


def all_or(drawn: int, of: int, request: pytest.FixtureRequest) -> list[int]:
    return (
        list(range(of)) if request.config.getoption("--grape-random") > 0 else random.Random(0).sample(range(of), drawn)
    )


@pytest.mark.parametrize("fault", [stop, interrupt, wrong_operator], ids=lambda fault: fault.__name__)
def test_a_fault_at_every_place_of_an_iteration(fault: Callable[[], object], request: pytest.FixtureRequest) -> None:
    count = places()
    assert count > 200
    for place in all_or(PLACES, count, request):
        evidence = agrees(fault, place, SERVED, steady=place % 3)
        assert evidence.matched > 0.3 * evidence.seen
        assert evidence.raised == (fault is wrong_operator)


@pytest.mark.parametrize("price", [0, 0.02])
def test_a_fault_while_an_iteration_is_recorded_followed_or_captured(
    price: float, request: pytest.FixtureRequest
) -> None:
    count = places()
    for n in all_or(4, 3 * SERVED, request):
        place, fault = random.Random(n).randrange(count), (stop, interrupt, wrong_operator)[n % 3]
        agrees(fault, place, n // 3, price=price)


def test_memory_that_ends_in_a_capture(device: str, request: pytest.FixtureRequest) -> None:  # noqa: F811
    if device != "pretended":
        pytest.skip("nothing is captured")
    plain = Loop(Faults()).run()
    asked: list[int] = []

    def refuse(stream: Stream, which: Callable[[int], bool]) -> None:
        asked.append(len(asked))
        if which(asked[-1]):
            stream._session.refused("CUDA out of memory")

    result, evidence = served(Faults(), lambda stream: refuse(stream, lambda n: False))
    assert result == plain and evidence.captured == len(asked) > 3
    refused = 0
    for failing in all_or(4, len(asked), request):
        asked.clear()
        result, evidence = served(Faults(), lambda stream, n=failing: refuse(stream, lambda m: m == n))  # type: ignore[misc]
        assert result == plain
        came = failing < len(asked)  # how many captures are asked for follows addresses, which are malloc's
        assert evidence.uncaptured == ({"CUDA out of memory": 1} if came else {})
        assert evidence.captured == len(asked) - came
        refused += came
    assert refused >= 3
    result, evidence = served(Faults(), lambda stream: refuse(stream, lambda n: True))
    assert result == plain
    assert evidence.captured == 0 and evidence.written["cannot be captured"] > 100


def test_an_interrupt_in_a_capture_comes_before_or_behind_its_operator(
    device: str,  # noqa: F811
    request: pytest.FixtureRequest,
) -> None:
    if device != "pretended":
        pytest.skip("nothing is captured")
    for n in all_or(3, 4, request):
        faults, left, passed = Faults(at=-1), [n], []

        def capture(_: Stream, faults: Faults = faults, left: list[int] = left, passed: list[int] = passed) -> None:
            left[0] -= 1
            if left[0] < 0 and not passed:
                passed.append(faults.passed)
                raise KeyboardInterrupt

        result, evidence = served(faults, capture)
        assert evidence.captured > 3
        (place,) = passed
        before, behind = (Loop(Faults(interrupt, at, -1)).run() for at in (place - 1, place))
        assert result in (before, behind), f"an interrupt in capture {n}, at place {place}"


BYTES = 1 << 20


_gaps: list[Tensor] = []


def taken() -> int:
    """Bytes that the system has given this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def fill_gaps() -> None:
    """What the heap has free would be taken before memory of the system."""
    grown = 0
    while grown < 8:
        before = taken()
        _gaps.append(torch.empty(BYTES // 4))
        grown = grown + 1 if taken() > before else 0


def limit(tensors: int) -> None:
    """Memory, from now on, to what there is and that of so many tensors of `BYTES`; 0: no more. For a process that
    ends soon.
    """
    if tensors:
        fill_gaps()
    room = taken() + tensors * BYTES if tensors else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))


def chain(x: Tensor) -> None:
    """Eight results, of which two live at a time, and then a change that is there to stay."""
    y = x
    for _ in range(4):
        y = torch.tanh(y * 0.5)
    x.copy_(y)


def states(count: int) -> list[Tensor]:
    """Before, and after each of so many iterations."""
    x = torch.full((BYTES // 4,), 0.5)
    return [x.clone(), *(x.clone() for _ in range(count) if chain(x) is None)]


def follow_with_little_memory(device: str) -> None:  # noqa: F811
    """In a process of its own: what others left in the heap would be memory that no limit is met with."""
    give_back_at_once()
    session._automatic = lambda: device
    native.load()
    for tensors in 6, 8:
        x, expected = torch.full((BYTES // 4,), 0.5), states(8)[-1]
        stream = open_stream(replace(EAGER_TO_MATCH, shortest=1, steady=0))
        assert isinstance(stream, Stream)
        limit(tensors)
        with stream:
            for _ in range(8):
                chain(x)
        limit(0)
        evidence = stream.evidence()
        assert torch.equal(x, expected), evidence
        assert evidence.raised == 0 and evidence.written["no room for its results"] > 10, evidence


def test_memory_that_does_not_suffice_for_homes(device: str) -> None:  # noqa: F811
    """An error that code as written does not have is no answer."""
    native.load()  # with the memory that a compiler takes
    lines_of_an_interpreter(f"from {__name__} import follow_with_little_memory\nfollow_with_little_memory({device!r})")


def test_memory_that_ends_at_an_operator_that_is_issued_late() -> None:
    """What is behind it does not happen, as it would not have: a step of training with half a gradient, say."""

    def work() -> None:
        expected, failed = states(12), 0
        for tensors in range(2, 20):
            x, log = torch.full((BYTES // 4,), 0.5), []
            stream = open_stream(replace(EAGER_TO_MATCH, shortest=1, steady=2))
            assert isinstance(stream, Stream)
            limit(tensors)
            with stream:
                for _ in range(12):
                    try:
                        chain(x)
                        x[0].item()
                        log.append(True)
                    except RuntimeError:
                        log.append(False)
            limit(0)
            failed += not all(log)
            assert torch.equal(x, expected[sum(log)]), (tensors, log, stream.evidence())
        assert failed > 0, "no limit was one at which an operator fails"

    native.load()  # with the memory that a compiler takes
    in_a_fork(work)
