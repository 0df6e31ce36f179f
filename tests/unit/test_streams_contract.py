"""Operator streams on the CPU, one contract point after the other: what matches, what runs as written, what is kept."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch.nn import functional as F

from grape.streams import Evidence, Settings, Stream, open_stream
from tests.property.stream_programs import device, flat, needs_compiler  # noqa: F401

pytestmark = needs_compiler

EAGER_TO_MATCH = Settings(shortest=1, hot=2, settled=0, patience=0, price=0, doubt=0)


def under_a_stream(function: Callable[[], Any], settings: Settings = EAGER_TO_MATCH) -> tuple[Any, Evidence]:
    stream = open_stream(settings)
    assert isinstance(stream, Stream), stream
    with stream:
        result = function()
    return result, stream.evidence()


def agrees(function: Callable[[], Any], settings: Settings = EAGER_TO_MATCH) -> Evidence:
    """Run plain and under a stream, which must leave the same; at least something has to match."""
    torch.manual_seed(1)
    plain = flat(function())
    torch.manual_seed(1)
    result, evidence = under_a_stream(function, settings)
    assert flat(result) == plain
    assert evidence.matched > 0
    return evidence


def chain(x: Tensor) -> Tensor:
    return torch.tanh(x * 1.5 + 0.25) - x.mean()


def training(make_optimizer: Callable[..., Any], **options: Any) -> Callable[[], Any]:
    def loop() -> Any:
        torch.manual_seed(0)
        xs, ys = torch.randn(50, 16, 8), torch.randn(50, 16, 3)
        net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        optimizer = make_optimizer(net.parameters(), **options)
        losses: list[Any] = []
        for i in range(40):
            optimizer.zero_grad()
            loss = F.mse_loss(net(xs[i]), ys[i])
            loss.backward()
            optimizer.step()
            losses += [loss.detach(), loss.item()]
        return [*net.parameters(), losses, optimizer.state_dict(), [p.grad for p in net.parameters()]]

    return loop


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.Adam, {}),
        (torch.optim.Adam, {"foreach": True}),
        (torch.optim.Adam, {"fused": True}),
        (torch.optim.AdamW, {"foreach": True, "amsgrad": True}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.SGD, {"lr": 0.1, "foreach": True}),
    ],
    ids=str,
)
def test_a_training_loop_with_a_read_and_kept_losses_at_every_step(optimizer: Any, options: dict[str, Any]) -> None:
    evidence = agrees(training(optimizer, **options), Settings(price=0, doubt=0))
    assert evidence.matched > 0.5 * evidence.seen


# 2: observe, record, match


def test_what_repeats_is_found_without_marks_and_what_does_not_is_left_alone() -> None:
    assert agrees(lambda: [chain(torch.ones(4)) for _ in range(30)][-1]).matched > 80
    _, once = under_a_stream(lambda: chain(torch.ones(4)))
    assert (once.matched, once.recorded) == (0, 0)


def test_another_shape_or_dtype_does_not_match() -> None:
    def loop() -> list[Tensor]:
        out = []
        for i in range(60):
            x = torch.full((3 + i % 2,), 1.0 + i % 3, dtype=torch.float64 if i % 5 == 4 else torch.float32)
            out.append(chain(x))
        return out

    assert agrees(loop).diverged > 0


def test_another_memory_format_does_not_match() -> None:
    x = torch.randn(2, 3, 4, 4)
    y = x.to(memory_format=torch.channels_last)

    def loop() -> list[Any]:
        results = [(chain(y if i % 7 == 6 else x)) for i in range(40)]
        return [[r, r.is_contiguous(memory_format=torch.channels_last)] for r in results]

    agrees(loop)


@pytest.mark.parametrize("numbers", [(0.0, -0.0), (1.0, math.nan), (1, 1.0), (True, 1), (0.0, 0)])
def test_a_number_that_changed_runs_as_written(numbers: tuple[Any, Any]) -> None:
    def loop() -> list[Any]:
        x, out = torch.tensor([1.0, -2.0]), []
        for i in range(40):
            number = numbers[i % 9 == 8]
            out.append((x * number, x.clone().fill_(number), torch.full((2,), number), (x > 0) * number))
        return out

    agrees(loop)


@pytest.mark.parametrize("other", [True, 1, 2])
def test_a_number_of_another_type_runs_as_written(other: Any) -> None:
    """`alpha=True` is an error, and `alpha=1` is none."""

    def loop() -> list[Any]:
        x, out = torch.tensor([1.0, -2.0]), list[Any]()
        for i in range(40):
            try:
                out.append(torch.tanh(x).add(x, alpha=other if i % 9 == 8 else 1))
            except RuntimeError as error:
                out.append(str(error))
        return out

    evidence = agrees(loop)
    assert evidence.raised == (4 if other is True else 0)


def test_what_gives_a_tensor_its_size_is_not_deferred() -> None:
    def loop() -> list[Tensor]:
        out = []
        for _ in range(40):
            made = torch.empty(0)
            torch.add(torch.tanh(torch.ones(4)), 0.5, out=made)
            out.append(torch.tanh(made))
        return out

    assert agrees(loop).written["changes metadata"] > 20


def test_what_moves_a_tensor_to_where_it_lay_is_not_deferred() -> None:
    """Of the same layouts, another one is moved: the place is a number that counts from the storage's begin."""

    def loop() -> list[Tensor]:
        memory, out = torch.arange(8.0), []
        for i in range(40):
            at = 4 * (i % 9 == 8)
            tensor = memory[at : at + 4]
            tensor.as_strided_((4,), (1,), 0)
            out.append(torch.tanh(tensor))
        return out

    assert agrees(loop).written["changes metadata"] > 20


COPY_STORAGES: list[Callable[[Tensor], Tensor]] = [
    lambda t: torch.slice_scatter(t, torch.ones(2, 5), 0, 0, 2),
    lambda t: torch.select_scatter(t, torch.ones(5), 0, 1),
    lambda t: torch.diagonal_scatter(t, torch.ones(4)),
    lambda t: torch.as_strided_scatter(t, torch.ones(2, 3), (2, 3), (5, 1)),
    lambda t: torch.ops.aten._new_zeros_with_same_feature_meta(torch.ones(4, 5), t),
    lambda t: torch.func.jvp(lambda x: x.tanh() * 2, (t,), (torch.ones_like(t),))[1],
]
LONGER = torch.arange(120.0)
PLACES: list[Callable[[Tensor, int], Tensor]] = [
    lambda t, i: t[10:30].view(4, 5),
    lambda t, i: (t + i)[10:30].view(4, 5),
    lambda t, i: (t + i)[i : i + 20].view(4, 5),
    lambda t, i: (t + i)[1:41].view(4, 10)[:, 2:7],
    lambda t, i: (LONGER if i % 9 == 8 else t)[:20].view(4, 5),
]


@pytest.mark.parametrize("copied", COPY_STORAGES)
@pytest.mark.parametrize("placed", PLACES)
def test_what_copies_a_storage_is_not_deferred(
    copied: Callable[[Tensor], Tensor], placed: Callable[[Tensor, int], Tensor]
) -> None:
    """The result lies where its argument does, in a storage as large."""
    base = torch.arange(60.0)

    def loop() -> list[Tensor]:
        out = []
        for i in range(30):
            made = copied(placed(base, i))
            out += [
                torch.tanh(made),
                torch.tensor([made.storage_offset(), made.untyped_storage().nbytes(), *made.stride()]),
            ]
        return out

    agrees(loop)


def test_a_number_that_changes_at_every_step_ends_no_fragment() -> None:
    x = torch.ones(3)
    evidence = agrees(lambda: [torch.tanh(x.mul(2).add(x, alpha=i)) for i in range(60)])
    assert evidence.written["number changed"] > 40
    assert evidence.diverged < 5


# 3: segments


def test_a_read_sees_everything_before_it() -> None:
    def loop() -> list[Any]:
        x, read = torch.ones(4), []
        for i in range(40):
            x = chain(x) + i * 0.0
            read += [x.sum().item(), bool((x > 0).any()), x.tolist(), x.nonzero(), str(x), torch.equal(x, x)]
        return read

    agrees(loop)


def test_a_segment_is_no_longer_than_asked() -> None:
    x = torch.ones(3)
    few = agrees(lambda: [chain(x) for _ in range(60)][-1], replace(EAGER_TO_MATCH, longest=1000))
    many = agrees(lambda: [chain(x) for _ in range(60)][-1], replace(EAGER_TO_MATCH, longest=1))
    assert many.segments > few.segments
    assert many.segments == many.issued


def test_marks_of_the_profiler_and_views_cut_nothing() -> None:
    def loop(mark: bool) -> Callable[[], Any]:
        def body(x: Tensor) -> Tensor:
            if mark:
                with torch.profiler.record_function("step"):
                    return chain(x.view(2, 2).t()).t().reshape(4)
            return chain(x.view(2, 2).t()).t().reshape(4)

        return lambda: [body(torch.ones(4)) for _ in range(40)]

    assert agrees(loop(mark=True)).segments == agrees(loop(mark=False)).segments


# 4: divergence


@pytest.mark.parametrize("position", range(4))
def test_divergence_at_any_operator_loses_nothing_and_does_nothing_twice(position: int) -> None:
    def loop() -> list[Tensor]:
        total, out = torch.zeros(3), []
        for i in range(50):
            for k in range(4):
                if i % 11 == 10 and k == position:
                    total.sub_(0.5)
                total.add_(torch.tanh(total + k))
            out.append(total.clone())
        return out

    assert agrees(loop).diverged > 0


def test_a_branch_that_is_taken_again_becomes_a_side() -> None:
    def loop() -> list[Tensor]:
        x, out = torch.ones(4), []
        for i in range(120):
            x = torch.tanh(x + 0.5)
            x = x.sin().exp().sub(1) if i % 3 == 1 else x.cos().mul(2)
            out.append(x)
        return out

    evidence = agrees(loop)
    assert evidence.fragments >= 2
    assert evidence.matched > 0.6 * evidence.seen


def test_each_length_of_a_cache_that_grows_becomes_a_side() -> None:
    """The operators of an iteration differ by the sizes of what lies in a list first."""

    def loop() -> list[Any]:
        out: list[Any] = []
        for _ in range(10):
            cache, token = torch.zeros(1, 4), torch.ones(1, 4)
            for _ in range(10):
                cache = torch.cat([cache, token])
                token = torch.tanh(chain(cache).mean(0, keepdim=True) + 0.5)
                out += [token, token.sum().item()]
        return out

    evidence = agrees(loop, Settings(shortest=8, settled=0, patience=50, price=0, doubt=0))
    assert evidence.fragments >= 9
    assert evidence.matched > 0.5 * evidence.seen
    assert evidence.seen == evidence.matched + sum(evidence.written.values()) + evidence.recorded


def test_a_record_that_leads_into_iterations_is_left_for_theirs() -> None:
    """What a loop is prepared by may come several times, and never again."""

    def loop() -> Tensor:
        x = torch.ones(4)
        for rest in ((torch.sinh,), (torch.cosh, torch.atan), (torch.erf, torch.neg, torch.abs)):
            for operator in (torch.sin, torch.cos, torch.exp, torch.tanh, *rest):
                x = operator(x)
        for _ in range(100):
            x = chain(x)
        return x

    evidence = agrees(loop, Settings(shortest=8, furthest=800, settled=40, patience=0, price=0, doubt=0))
    assert evidence.matched > 0.5 * evidence.seen


def test_iterations_behind_such_a_record_are_found_anew() -> None:
    """They may be as long as those that were known when it began."""

    def loop() -> Tensor:
        x = torch.ones(4)
        for last in (False, False, False, True):
            x = torch.sin(x).cos().exp().tanh()
            x.sum().item()  # the record begins here, in the last iteration
            if not last:
                x = torch.atan(x).abs().neg()
                x.mean().item()
        for _ in range(60):
            x = chain(chain(x).sigmoid())
        return x

    evidence = agrees(loop, Settings(shortest=8, furthest=160, settled=40, hot=4, patience=1, price=0, doubt=0))
    assert evidence.matched > 0.5 * evidence.seen


def test_what_begins_to_repeat_late_is_found() -> None:
    """Behind more contexts than are kept, and at no regular distance. The noise has few sizes: they do not grow."""
    draw, x, y = random.Random(0), torch.rand(64), torch.randn(4, 4)
    operators = [torch.sin, torch.cos, torch.exp, torch.tanh, torch.atan, torch.sigmoid, torch.erf, torch.abs]
    parts = [x[: 4 * n].clone() for n in range(1, 17)]

    def loop(noise: int, times: int) -> Tensor:
        z = y
        for lengths in [noise, *(draw.randrange(1, 6) for _ in range(times))]:
            for _ in range(lengths):
                draw.choice(operators)(draw.choice(parts))
            z = (((z + 1).relu() - 2).tanh() * y / 3).sigmoid().exp().neg().abs().sqrt().sin().cos().square()
        return z

    _, evidence = under_a_stream(lambda: loop(70_000, 40), Settings(settled=0, patience=0, price=0, doubt=0))
    assert evidence.matched > 200, evidence


def test_what_comes_behind_the_longest_fragment_is_recorded_too() -> None:
    """Of an iteration that is longer than a fragment may be; nothing in it comes twice, and only its end is read."""
    operators = [torch.sin, torch.cos, torch.exp, torch.tanh, torch.atan, torch.sigmoid, torch.erf]

    def loop() -> Tensor:
        x = torch.ones(4)
        for _ in range(40):
            for i in range(140):
                x = operators[i % 7](x) if i % 2 else operators[(i // 7) % 7](x).clamp(-1.0 - i, 1.0 + i)
            x = x / (1 + x.sum().item())
        return x

    evidence = agrees(loop, Settings(shortest=8, furthest=100, iteration=50, settled=40, patience=1, price=0, doubt=0))
    assert evidence.matched > 0.75 * evidence.seen, evidence


def test_a_fragment_that_is_left_late_goes_on() -> None:
    """The end of each iteration is another one. What comes before it is served on, and not recorded anew."""
    operators = [torch.sin, torch.cos, torch.exp, torch.tanh, torch.atan, torch.sigmoid, torch.erf]

    def loop() -> Tensor:
        x = torch.ones(4)
        for i in range(300):
            for k in range(45):
                x = operators[(k**3 + k // 7) % 7](x).clamp(-1.0 - k, 1.0 + k)
            for length in range(1 + 20 * i, 21 + 20 * i):
                torch.ones(length).exp()
            x = x / (1 + x.sum().item())
        return x

    evidence = agrees(loop, Settings(shortest=8, hot=2, settled=0, patience=0, price=0, doubt=0))
    assert evidence.fragments <= 10, evidence  # some are recorded anew once the lengths are seen to grow
    assert evidence.matched > 85 * 290, evidence


class Stop(Exception):
    pass


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
def test_an_exception_between_two_operators(error: type[BaseException]) -> None:
    def loop() -> list[Tensor]:
        x, out = torch.zeros(3), []
        for i in range(50):
            try:
                x.add_(1)
                y = torch.tanh(x)
                if i % 13 == 12:
                    raise error
                out.append(y * 2)
            except error:
                out.append(x + 100)
        return out

    agrees(loop)


def test_an_operator_that_raises_does_so_where_it_stands() -> None:
    table, chances = torch.randn(10, 4), torch.full((40, 16), 0.25)
    chances[8::9] = 1.5
    matrices = [torch.eye(3) * (-1.0 if i % 9 == 8 else 2.0) for i in range(40)]

    def loop() -> list[Any]:
        log: list[Any] = []
        for i in range(40):
            index = torch.full((3,), 11 if i % 9 == 8 else 3)
            try:
                row = F.embedding(index + 0, table)
                log.append("found")
                log.append(chain(row))
            except IndexError:
                log.append("outside")
            try:
                log.append(F.binary_cross_entropy(torch.ones(2) * 0.25 + (i % 9 == 8), torch.ones(2)))
                log.append("inside")
            except RuntimeError:
                log.append("no probability")
            try:
                log.append([F.binary_cross_entropy(chances[i], torch.ones(16)), torch.linalg.cholesky(matrices[i])])
                log.append("inside")
            except RuntimeError:
                log.append("by its data")
            try:
                chain(torch.ones(2, 2 + (i % 9 == 8))) @ torch.ones(2, 2)
            except RuntimeError:
                log.append("shapes")
        return log

    agrees(loop)


def test_an_operator_that_looks_at_its_data_raises_before_the_next_one() -> None:
    """Nothing between the two reads: issued late, it would raise at the other, or behind both."""
    chances = torch.full((40, 16), 0.25)
    chances[8::9] = 1.5

    def loop() -> list[Any]:
        log: list[Any] = []
        for i in range(40):
            x = torch.tanh(torch.ones(16))
            try:
                log.append(F.binary_cross_entropy(chances[i], x))
            except RuntimeError as error:
                log.append(str(error))
            log.append(torch.tanh(x).sin().cos())
        return log

    agrees(loop)


def test_a_range_that_is_not_finite_is_found_where_it_is_binned() -> None:
    points = torch.rand(40, 8, 2)
    points[8::9, 0, 0] = float("nan")

    def loop() -> list[Any]:
        log: list[Any] = []
        for i in range(40):
            x = torch.tanh(points[i])
            try:
                log.append(torch.histogramdd(x, bins=[2, 2]).hist)
            except RuntimeError as error:
                log.append(str(error))
            log.append(x.sin().cos())
        return log

    agrees(loop)


@pytest.mark.parametrize("checks", ["divides", "scatters"])
def test_integers_and_lengths_that_kernels_check_raise_where_they_are_called(checks: str) -> None:
    divisors = [torch.full((4,), int(i % 9 != 8)) for i in range(60)]
    masks = [torch.arange(16) % 4 == 0 if i % 9 != 8 else torch.ones(16, dtype=torch.bool) for i in range(60)]

    def loop() -> list[Any]:
        log: list[Any] = []
        for i in range(60):
            x = torch.tanh(torch.ones(16)) * 0.5
            whole = torch.full((4,), 7)
            try:
                log.append(
                    whole.remainder_(divisors[i]) if checks == "divides" else x.masked_scatter_(masks[i], torch.ones(8))
                )
            except RuntimeError as error:
                log.append(str(error))
            log.append(x.sin().cos())
        return log

    agrees(loop)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 2.5, math.inf])
def test_distances_look_at_no_data(p: float) -> None:
    def loop() -> list[Any]:
        x, out = torch.linspace(-1, 1, 40).view(8, 5).requires_grad_(), []
        for _ in range(40):
            distances = torch.cdist(x * 2.0, x + 0.5, p=p)
            (slope,) = torch.autograd.grad((distances + 1.0).sum(), x)
            x = (x - 0.01 * slope).detach().requires_grad_()
            out += [distances.detach(), slope]
        return out

    assert "checks its data" not in agrees(loop).written


# 5: homes and lifetimes


@pytest.mark.parametrize(
    "keep",
    [
        lambda t: t,
        lambda t: t.view(-1)[1:],
        lambda t: t.detach(),
        lambda t: t.numpy(),
        lambda t: torch.from_dlpack(t),
        lambda t: memoryview(t.numpy()).cast("B").tolist(),
        lambda t: (lambda storage: [storage[i] for i in range(8)])(t.untyped_storage()),
    ],
    ids=["tensor", "view", "detached", "numpy", "dlpack", "buffer", "storage"],
)
def test_a_kept_result_is_never_overwritten(keep: Callable[[Tensor], Any]) -> None:
    def loop() -> list[Any]:
        x, out = torch.ones(4), []
        for _ in range(40):
            x = chain(x)
            out.append(keep(x))
        return out

    agrees(loop)


def test_results_outlive_the_stream() -> None:
    x = torch.ones(1000)
    results, evidence = under_a_stream(lambda: [chain(x) for _ in range(40)])
    assert evidence.kept > 0
    expected = chain(x)
    others = [torch.randn(1000) for _ in range(200)]  # would take memory that was freed too early
    assert len(others) == 200 and all(torch.equal(result, expected) for result in results)
    results[-1].resize_(2000)[1000:] = 1
    assert torch.equal(results[-1][:1000], expected)


def test_a_result_in_a_home_outlives_the_stream() -> None:
    x = torch.ones(1000)

    def loop() -> Tensor:
        for _ in range(40):
            chain(x)
        return chain(x)  # the only one that is kept

    result, _ = under_a_stream(loop)
    others = [torch.randn(1000) for _ in range(200)]
    assert len(others) == 200 and torch.equal(result, chain(x))


def test_a_result_that_moved_away_is_found_where_it_lies() -> None:
    def loop() -> list[Tensor]:
        out = []
        for _ in range(40):
            y = torch.ones(4).mul(3)
            y.resize_(8)
            y[4:] = 2
            out.append(torch.tanh(y) + y)
        return out

    agrees(loop)


def test_dead_results_leave_their_homes() -> None:
    x = torch.ones(4)

    def loop() -> Tensor:
        y = torch.zeros(())
        for _ in range(40):
            del y
            y = chain(x)
        return y

    assert agrees(loop).kept == 0


@pytest.mark.parametrize("none", [True, False])
def test_gradients_are_stolen_or_accumulated_as_in_eager_code(none: bool) -> None:
    def loop() -> list[Any]:
        net, kept = nn.Linear(4, 4), []
        torch.manual_seed(0)
        nn.init.normal_(net.weight)
        nn.init.zeros_(net.bias)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for i in range(40):
            for k in range(3):
                net(torch.full((2, 4), 0.1 * (i % 4 + k))).pow(2).mean().backward()
            kept.append(net.weight.grad)
            optimizer.step()
            optimizer.zero_grad(set_to_none=none)
        return [kept, list(net.parameters())]

    agrees(loop)


def test_each_answer_is_a_tensor_of_its_own_with_its_own_graph() -> None:
    w = torch.ones(3, requires_grad=True)
    results, evidence = under_a_stream(lambda: [w.detach().mul(2).requires_grad_().exp() for _ in range(40)])
    assert evidence.matched > 0
    nodes = [result.grad_fn for result in results]  # held, for what Python makes of one may have another's identity
    assert len({id(node) for node in nodes}) == 40
    assert len({r.grad_fn.next_functions[0][0].variable.data_ptr() for r in results}) == 40


def test_double_backward_and_hooks() -> None:
    def loop() -> list[Any]:
        w, out = torch.linspace(-1, 1, 4).requires_grad_(), []
        for _ in range(40):
            y = torch.tanh(w * 2)
            y.register_hook(lambda g: g * 2)
            (g,) = torch.autograd.grad(y.sum(), w, create_graph=True)
            (h,) = torch.autograd.grad(g.pow(2).sum(), w)
            out += [g.detach(), h]
        return out

    agrees(loop)


def test_a_result_of_inference_mode_is_one_and_others_are_none() -> None:
    def loop() -> list[Any]:
        out: list[Any] = []
        for i in range(60):
            with torch.inference_mode(i % 2 == 0):
                y = F.linear(torch.ones(2, 2), torch.ones(2, 2)).relu() + 1
            out += [y, y.is_inference()]
        return out

    agrees(loop)


# Inputs


def test_an_input_that_lies_elsewhere_each_time() -> None:
    data = torch.randn(20, 8)
    evidence = agrees(lambda: [chain(data[i % 20]) for i in range(60)])
    assert evidence.copied_in > 0


def test_integers_and_booleans_match_wherever_they_lie() -> None:
    """An alignment may choose a kernel and so how it rounds; what is exact comes out the same."""
    x, counts, masks = torch.randn(3), torch.arange(240).view(80, 3), torch.rand(80, 3) > 0.5
    evidence = agrees(lambda: [torch.tanh(x * counts[i]).masked_fill(masks[i], 0.5) for i in range(80)])
    assert "other aliases than recorded" not in evidence.written
    assert evidence.matched > 0.8 * evidence.seen


def test_floats_that_are_aligned_otherwise_each_time_run_as_written() -> None:
    x, factors = torch.randn(3), torch.randn(80, 3)
    evidence = agrees(lambda: [torch.tanh(factors[i]) * x for i in range(80)])
    assert evidence.written["other aliases than recorded"] > 50


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_floats_of_which_ieee_says_what_comes_out_match_wherever_they_lie(dtype: torch.dtype) -> None:
    x, factors = torch.randn(3).to(dtype), torch.randn(80, 3).to(dtype)
    evidence = agrees(lambda: [torch.tanh((x + factors[i]) / factors[i].abs()) for i in range(80)])
    assert "other aliases than recorded" not in evidence.written
    assert evidence.matched > 0.8 * evidence.seen


def test_a_sum_that_is_scaled_rounds_twice() -> None:
    x, factors = torch.randn(3), torch.randn(80, 3)
    evidence = agrees(lambda: [torch.add(x, factors[i], alpha=0.3) for i in range(80)])
    assert evidence.written["other aliases than recorded"] > 50


def test_alignments_that_repeat_become_a_longer_iteration() -> None:
    """As of the columns of a batch: the classes of `8 * i` bytes come back every eighth time."""
    x, columns = torch.randn(9, 1, dtype=torch.float64), torch.randn(5, 800, dtype=torch.float64).split(1, dim=1)
    evidence = agrees(lambda: [torch.tanh(column @ x[:1]).softmax(0) for column in columns])
    assert evidence.written["other aliases than recorded"] < 150
    assert evidence.matched > 0.6 * evidence.seen


def test_floats_that_are_aligned_otherwise_from_now_on_match_again() -> None:
    buffers = [torch.randn(24) for _ in range(160)]
    xs = [buffer[4:12] if 40 <= i < 100 else buffer[:8] for i, buffer in enumerate(buffers)]
    evidence = agrees(lambda: [torch.tanh(x * 1.5) - x.mean() for x in xs])
    assert 2 <= evidence.written["other aliases than recorded"] < 40
    assert evidence.matched > 0.8 * evidence.seen


def test_views_of_one_storage_keep_their_aliases() -> None:
    def loop() -> list[Tensor]:
        out = []
        for i in range(50):
            x = torch.zeros(2, 4).add(i % 3)
            row, column = x[0], x[:, 1]
            row.add_(1)
            column.mul_(3)
            out.append(x + row)
        return out

    agrees(loop)


def test_one_tensor_in_the_place_of_two() -> None:
    def loop() -> list[Tensor]:
        out = []
        for i in range(60):
            a = torch.ones(3) * (i % 4 + 1)
            b = a if i % 8 == 7 else torch.ones(3) * 5
            a.add_(1)
            out.append(a * b)
            b.mul_(2)
            out.append(a + b)
        return out

    agrees(loop)


def test_another_tensor_in_the_place_of_a_pending_one() -> None:
    start, y = torch.full((4,), 1.5), torch.full((4,), 0.9)

    def loop() -> list[Tensor]:
        out = []
        for _ in range(8):
            x = start
            for _ in range(50):
                x = x * y
            out.append(x)
        return out

    agrees(loop, Settings(shortest=32, hot=2, settled=0, patience=0, price=0, doubt=0))


@pytest.mark.parametrize("part", [slice(None), slice(1, 3)], ids=["whole", "overlapping"])
def test_an_input_that_aliases_one_that_changes(part: slice) -> None:
    def loop() -> list[Any]:
        changing, other = [torch.full((4,), float(i)) for i in range(60)], torch.ones(4)
        out = []
        for i, u in enumerate(changing):
            v = (u if i % 8 == 7 else other)[part]
            u.add_(1)
            y = v * 2
            u.mul_(3)
            out.append([y + v, u])
        return out

    agrees(loop)


@pytest.mark.parametrize("change", ["data", "set_", "assign", "resize"])
def test_a_parameter_that_is_swapped(change: str) -> None:
    def loop() -> list[Any]:
        net, out = nn.Linear(3, 3), []
        with torch.no_grad():
            net.weight.fill_(0.5)
            net.bias.fill_(0.1)
            for i in range(40):
                out.append(net(torch.ones(2, 3)).tanh())
                net.weight.mul_(0.9)
                if i % 9 == 8:
                    new = torch.full((3, 3), 0.1 * (i % 5))
                    if change == "data":
                        net.weight.data = new
                    elif change == "set_":
                        net.weight.set_(new)
                    elif change == "assign":
                        net.load_state_dict({"weight": new, "bias": net.bias.clone()}, assign=True)
                    else:
                        net.weight.untyped_storage().resize_(0)
                        net.weight.untyped_storage().resize_(36)
                        net.weight.fill_(0.3)
        return [out, list(net.parameters())]

    agrees(loop)


# 7: random numbers


def test_random_numbers_are_those_of_eager_code_at_every_point() -> None:
    def loop() -> list[Any]:
        own, out = torch.Generator().manual_seed(3), []
        for i in range(50):
            y = F.dropout(chain(torch.ones(4)), 0.5)
            out += [y, torch.randn(3), torch.rand(2, generator=own), torch.get_rng_state(), torch.randperm(4)]
            if i % 7 == 6:
                torch.manual_seed(i)
            with torch.random.fork_rng():
                torch.randn(2)
        return out

    agrees(loop)


def test_operators_that_draw_are_deferred() -> None:
    def loop() -> list[Any]:
        x, out = torch.ones(4, 8), []
        for _ in range(40):
            x = F.dropout(torch.tanh(x * 1.5), 0.3) + 0.1 * torch.randn_like(x)
            out.append(x.sum().item())
        return [out, torch.get_rng_state()]

    evidence = agrees(loop)
    assert "random numbers" not in evidence.written
    assert evidence.matched > 0.5 * evidence.seen


@pytest.mark.parametrize(
    "move",
    [
        lambda i: torch.manual_seed(i),
        lambda i: torch.rand(2).numpy(),
        lambda i: torch.random.set_rng_state(torch.random.get_rng_state().roll(0)),
        lambda i: torch.default_generator.manual_seed(3 * i),
    ],
    ids=["manual_seed", "a draw that runs as written", "set_rng_state", "of the generator"],
)
def test_who_moves_the_generator_between_two_pending_draws(move: Callable[[int], Any]) -> None:
    def loop() -> list[Any]:
        x, out = torch.ones(4, 8), []
        for i in range(90):
            if i % 9 == 4:
                move(i)
            x = F.dropout(torch.tanh(x * 1.5), 0.3)
            if i % 9 == 8:  # one of the two is in the middle of a segment, wherever that begins
                move(i)
            x = F.dropout(x + 0.25, 0.5)
            out.append(x.clone())
        return [out, torch.get_rng_state()]

    agrees(loop)


def test_a_generator_of_the_person_draws_as_written() -> None:
    def loop() -> list[Any]:
        own, x, out = torch.Generator().manual_seed(3), torch.ones(8), []
        for _ in range(40):
            x = torch.tanh(x * 1.5) + torch.empty(8).normal_(generator=own)
            out.append(x.sum())
        return [out, own.get_state(), torch.get_rng_state()]

    assert agrees(loop).written["random numbers"] > 30


# How operators compute


@pytest.mark.parametrize(
    "change",
    [
        lambda i: torch.set_default_dtype(torch.float64 if i % 2 else torch.float32),
        lambda i: torch.use_deterministic_algorithms(bool(i % 2)),
        lambda i: torch.set_float32_matmul_precision("medium" if i % 2 else "highest"),
        lambda i: torch.set_flush_denormal(bool(i % 2)),
    ],
    ids=["default dtype", "deterministic", "precision", "denormal"],
)
def test_a_change_of_how_operators_compute(change: Callable[[int], Any]) -> None:
    def loop() -> list[Tensor]:
        out = []
        try:
            for i in range(90):
                if i % 30 == 29:
                    change(i // 30 + 1)
                x = torch.full((4,), 1.5) * 1e-39
                out.append(torch.tanh(x * 1.25 + torch.ones(4)) @ torch.eye(4).to(x.dtype) + x)
        finally:
            change(0)
        return out

    agrees(loop)


def test_what_was_recorded_before_a_change_of_how_operators_compute_is_forgotten() -> None:
    """A graph keeps the kernels that it was captured with; the pretended ones compute anew."""
    stream = open_stream(replace(EAGER_TO_MATCH, device="pretended"))
    assert isinstance(stream, Stream), stream
    plain = torch.get_float32_matmul_precision()
    with stream:
        for _ in range(30):
            torch.tanh(torch.ones(4, 4) @ torch.ones(4, 4)).sum()
        before = stream.evidence()
        torch.set_float32_matmul_precision("medium")
        after = stream.evidence()
        torch.set_float32_matmul_precision(plain)
    assert before.captured and before.bytes > 0 == after.bytes


def test_a_warning_names_its_line_each_time() -> None:
    def loop() -> list[Any]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(30):
                x = torch.tanh(torch.ones(1))
                x.std()
                x.sin()
        return [(str(w.message)[:40], w.lineno) for w in caught]

    agrees(loop)


def test_warnings_that_come_always_from_now_on() -> None:
    def loop() -> list[Any]:
        x, y = torch.complex(torch.ones(4), torch.ones(4)), torch.zeros(4)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                y.copy_(x)  # warns once in a process
                caught.clear()
                for i in range(60):
                    if i == 40:
                        torch.set_warn_always(True)
                    y.copy_(x)
                    y.tanh_()
                    y.mul_(0.5)
        finally:
            torch.set_warn_always(False)
        return [(str(w.message)[:20], w.lineno) for w in caught]

    assert len(loop()) == 20
    agrees(loop)


def test_homes_stay_inside_their_budget() -> None:
    x = torch.ones(1000)
    _, small = under_a_stream(lambda: [chain(x) for _ in range(40)], replace(EAGER_TO_MATCH, budget=0))
    assert (small.recorded, small.matched) == (0, 0)


# 9: versions


def test_version_counters_are_those_of_eager_code() -> None:
    def loop() -> list[Any]:
        xs, x, out = [torch.ones(3), torch.ones(2)], torch.ones(3), []
        for _ in range(40):
            torch._foreach_add_(xs, 1)
            torch._foreach_lerp_(xs, xs, 0.1)
            x.add_(xs[0]).mul_(0.5)
            y = torch.full((2,), 1.5)
            out.append([x._version, y._version, *(t._version for t in xs)])
        return out

    agrees(loop)


def test_autograd_notices_a_saved_tensor_that_was_changed_in_place() -> None:
    w = torch.ones(3, requires_grad=True)

    def loop() -> list[str]:
        log = []
        for i in range(40):
            y = (w * 2).exp()
            if i % 6 == 5:
                torch._foreach_add_([y.detach()], 1)
            try:
                y.sum().backward()
                log.append("went")
            except RuntimeError as error:
                log.append(str(error)[:60])
        return log

    agrees(loop)


def test_evidence_adds_up() -> None:
    evidence = agrees(training(torch.optim.Adam), Settings(price=0, doubt=0))
    assert evidence.seen == evidence.matched + sum(evidence.written.values()) + evidence.recorded
    assert evidence.issued == evidence.matched
    assert evidence.partial <= evidence.segments
    assert evidence.own_ns > 0


@pytest.fixture(autouse=True)
def nothing_is_open() -> Iterator[None]:
    yield
    stream = open_stream()
    assert isinstance(stream, Stream), stream
    stream.close()


def test_a_copy_of_an_inference_tensor_has_the_version_of_such_a_copy() -> None:
    """Outside of the inference mode nothing of autograd's comes before its kernel, which counts what it copies to."""

    def loop() -> list[Tensor]:
        with torch.inference_mode():
            y = torch.ones(4, 3)
        x = y.clone()
        return [(y if i % 9 == 8 else x).clone() for i in range(40)]

    agrees(loop)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_pooling_that_reads_memory_of_the_host_as_it_is(mode: Callable[[], Any]) -> None:
    """A composite operator, which no key sees as a whole, on the CPU."""
    torch.manual_seed(0)
    values, weight = [torch.randn(9) for _ in range(12)], torch.ones(9)

    def loop() -> Any:
        left = []
        with mode():
            for value in values:
                x = torch.zeros(9).copy_(value) * weight
                left += [F.max_pool1d(x[3:].view(1, 2, 3), 3), x + 1]
        return left

    agrees(loop)


def test_a_pooling_that_reads_memory_of_the_host_is_differentiated() -> None:
    def loop() -> Any:
        weight = torch.ones(9, requires_grad=True)
        for number in range(12):
            x = torch.arange(9.0).mul_(number) * weight
            F.max_pool1d(x[3:].view(1, 2, 3), 3).sum().backward()
        return weight.grad

    agrees(loop)
