"""Functions of `torch.compile` under a stream: what was compiled outside serves inside, and the other way round."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from grape import native
from grape.streams import Settings, Stream, open_stream
from grape.streams.compiled import guarded
from tests.processes import lines_of
from tests.property.stream_programs import device, needs_compiler  # noqa: F401

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

EAGER_TO_MATCH = dict(shortest=1, hot=2, settled=0, patience=0, price=0, doubt=0)
Loop = Callable[[], list[Tensor]]


def extension() -> ModuleType:
    loaded = native.load()
    assert isinstance(loaded, ModuleType)
    return loaded


class Backend:
    """Counts what it compiles, and looks where the key is: while it compiles, and where its graphs run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.compiled = 0
        self.saw_key = False
        self.ran_with_key = 0
        self.ran = 0

    def looks(self) -> bool:
        return bool(torch.compiler.disable(extension().key_included)())

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        from torch._dynamo.backends.registry import lookup_backend

        self.compiled += 1
        self.saw_key |= extension().key_included()
        inner = lookup_backend(self.name)(graph, inputs)
        self.saw_key |= (
            torch.compiler.disable(extension().key_included)() | torch.compile(self.looks, backend="eager")()
        )

        def run(*given: Any) -> Any:
            self.ran += 1
            self.ran_with_key += extension().key_included()
            return inner(*given)

        return run


@pytest.fixture(scope="module", autouse=True)
def was_compiled_before() -> None:
    """The first call has torch._dynamo wrap functions of torch for good."""
    torch.compile(a_net(), backend="eager")(torch.ones(8))
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=torch.tensor(0.01))
    torch.compile(optimizer.step, backend="eager")()


@pytest.fixture(params=["eager", "aot_eager"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    torch._dynamo.reset()
    yield Backend(request.param)
    torch._dynamo.reset()


@pytest.fixture
def stream(device: str) -> Iterator[Stream]:  # noqa: F811
    """Paused at first."""
    opened = open_stream(Settings(device=device, **EAGER_TO_MATCH))
    assert isinstance(opened, Stream), opened
    opened.pause()
    yield opened
    opened.close()


def a_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def repeated(step: Callable[[Tensor], Tensor], sizes: tuple[int, ...] = (4,)) -> list[Tensor]:
    """Operators of the loop's own stand before and behind each call, and read its results."""
    out = []
    for i in range(12):
        x = torch.linspace(-1, 1, 8 * sizes[i % len(sizes)]).view(-1, 8)
        for _ in range(2):
            x = step(x * 1.1).tanh() + 0.1
        out.append(x)
    return out


def one_graph(compile: Callable[..., Any]) -> Loop:
    net = a_net()
    called = compile(lambda x: net(x).sin() + x, fullgraph=True)
    return lambda: repeated(lambda x: called(x).detach())


def graph_breaks(compile: Callable[..., Any]) -> Loop:
    """Numbers are read between the graphs, and memory is written there."""

    def step(x: Tensor) -> Tensor:
        y = x * 2
        if y.sum().item() > 3:
            y = y.cos()
        seen.append(y.flatten()[0].item())
        torch._dynamo.graph_break()
        y.mul_(0.5)
        y.numpy()[0] += 1
        return y + x

    seen: list[float] = []
    called = compile(step)
    return lambda: [*repeated(called), torch.tensor(seen[-24:])]


def the_whole_is_skipped(compile: Callable[..., Any]) -> Loop:
    """What it calls is looked at all the same."""

    def inner(x: Tensor) -> Tensor:
        return x.sin() * 3

    @torch.compiler.disable(recursive=False)
    def step(x: Tensor) -> Tensor:
        return inner(x + 1) - 1

    called = compile(step)
    return lambda: repeated(called)


def turned_off_inside(compile: Callable[..., Any]) -> Loop:
    other = compile(lambda x: x.sin() + 2)

    @torch.compiler.disable
    def apart(x: Tensor) -> Tensor:
        return other(x * 3).cos() + x

    called = compile(lambda x: apart(x + 1) * 0.5)
    return lambda: repeated(called)


def nested(compile: Callable[..., Any]) -> Loop:
    net = a_net()
    for layer in net:
        layer.compile(backend=compile.backend)  # type: ignore[attr-defined]
    outer = compile(lambda x: net(x) + x)
    return lambda: [*repeated(lambda x: outer(x).detach()), *repeated(lambda x: net(x).detach())]


def other_sizes(compile: Callable[..., Any]) -> Loop:
    called = compile(lambda x: x.sin().sum(0) + x, dynamic=True)
    return lambda: repeated(called, sizes=(4, 5, 7))


def training(compile: Callable[..., Any], optimizer: Any = torch.optim.Adam, whole: bool = False) -> Loop:
    net = a_net()
    start = {name: value.clone() for name, value in net.state_dict().items()}
    called = net if whole else compile(net)

    def step(x: Tensor) -> Tensor:
        loss = (called(x) - x).square().mean()
        loss.backward()
        return loss.detach()

    one = compile(step) if whole else step

    def loop() -> list[Tensor]:
        net.load_state_dict(start)
        moves = optimizer(net.parameters())

        def whole_step(x: Tensor) -> Tensor:
            loss = one(x)
            moves.step()
            moves.zero_grad()
            return x + loss

        return [*repeated(whole_step), *(value.clone() for value in net.state_dict().values())]

    return loop


def training_inside(compile: Callable[..., Any]) -> Loop:
    return training(compile, torch.optim.SGD, whole=True)


def compiled_optimizer(compile: Callable[..., Any]) -> Loop:
    net = a_net()
    moves = torch.optim.SGD(net.parameters(), lr=torch.tensor(0.01))
    start = {name: value.clone() for name, value in net.state_dict().items()}
    step = compile(moves.step)

    def whole_step(x: Tensor) -> Tensor:
        loss = (net(x) - x).square().mean()
        loss.backward()
        step()
        moves.zero_grad()
        return x + loss.detach()

    def loop() -> list[Tensor]:
        net.load_state_dict(start)
        return [*repeated(whole_step), *(value.clone() for value in net.state_dict().values())]

    return loop


def without_gradients(compile: Callable[..., Any]) -> Loop:
    called = compile(a_net())

    def loop() -> list[Tensor]:
        with torch.no_grad():
            return repeated(called)

    return loop


def errors(compile: Callable[..., Any]) -> Loop:
    def step(x: Tensor, inside: bool) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        try:
            y = y + 1
            torch._dynamo.graph_break()
            raises(inside)
        except KeyError:
            y = y * 2
        raises(not inside)
        return y

    @torch.compiler.disable
    def raises(now: bool) -> None:
        if now:
            raise KeyError("now")

    called = compile(step)

    def guarded(x: Tensor) -> Tensor:
        x = called(x, True)
        try:
            called(x * 2, False)
        except KeyError:
            return x * 3
        return x

    return lambda: repeated(guarded)


PROGRAMS = [
    one_graph,
    graph_breaks,
    the_whole_is_skipped,
    turned_off_inside,
    nested,
    other_sizes,
    training,
    training_inside,
    compiled_optimizer,
    without_gradients,
    errors,
]


def made(program: Callable[[Any], Loop], backend: Backend) -> Loop:
    def compile(function: Any, **how: Any) -> Any:
        return torch.compile(function, backend=backend, **how)

    compile.backend = backend  # type: ignore[attr-defined]
    return program(compile)


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_was_compiled_before_serves_inside_and_afterwards(
    program: Callable[[Any], Loop], backend: Backend, stream: Stream
) -> None:
    loop = made(program, backend)
    expected = [loop(), loop()][1]
    compiled = backend.compiled
    assert compiled > 0 and backend.ran_with_key == 0
    assert stream.resume() is None
    served = [loop() for _ in range(3)]
    assert extension().key_included()
    stream.pause()
    between = loop()
    assert stream.resume() is None
    served.append(loop())
    stream.close()
    assert backend.compiled == compiled, "nothing is compiled again"
    assert stream.evidence().matched > 50 and backend.ran_with_key > 0.5 * backend.ran
    assert all(same(one, expected) for one in (*served, between, loop()))
    assert backend.compiled == compiled and not extension().key_included()


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_was_compiled_inside_serves_afterwards(
    program: Callable[[Any], Loop], backend: Backend, stream: Stream
) -> None:
    plain = Backend(backend.name)
    loop = made(program, plain)
    expected = [loop(), loop()][1]
    torch._dynamo.reset()
    loop = made(program, backend)
    assert stream.resume() is None
    served = [loop(), loop()]
    stream.close()
    assert not backend.saw_key, "nothing is compiled beside the key"
    assert backend.compiled == plain.compiled
    assert same(loop(), expected) and same(served[1], expected)
    assert backend.compiled == plain.compiled


def test_a_graph_of_the_backward_pass_is_compiled_once(stream: Stream) -> None:
    from torch._dynamo.backends.common import aot_autograd

    compiled = []

    def compiler(graph: Any, inputs: Any) -> Any:
        from functorch.compile import make_boxed_func

        compiled.append(extension().key_included())
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    loop = training(lambda net: torch.compile(net, backend=aot_autograd(fw_compiler=compiler)))
    assert stream.resume() is None
    served = [loop(), loop()]
    stream.close()
    assert same(loop(), served[0]) and same(loop(), served[1])
    assert len(compiled) == 2 and not compiled[0]


@pytest.mark.parametrize("stance", ["fail_on_recompile", "eager_on_recompile", "force_eager"])
def test_stances_hold(stance: str, backend: Backend, stream: Stream) -> None:
    loop = made(one_graph, backend)
    expected = loop()
    compiled, ran = backend.compiled, backend.ran
    assert stream.resume() is None
    with torch.compiler.set_stance(stance):
        served = loop()
        assert extension().key_included()
    stream.close()
    assert backend.compiled == compiled and same(served, expected)
    if stance == "force_eager":
        assert backend.ran == ran
        assert stream.evidence().seen > 12 * 2 * 6, "the person's code is seen"
    else:
        assert backend.ran == 2 * ran


def test_threads_have_their_own_key(backend: Backend, stream: Stream) -> None:
    loop = made(graph_breaks, backend)
    expected = [loop(), loop()][1]
    compiled = backend.compiled
    found: list[Any] = []
    assert stream.resume() is None
    thread = threading.Thread(target=lambda: found.extend([loop(), extension().key_included()]))
    thread.start()
    thread.join()
    served = loop()
    stream.close()
    assert found[1] and same(found[0], expected) and same(served, expected)
    assert backend.compiled == compiled


def test_a_stream_that_is_paused_inside_stays_paused(backend: Backend, stream: Stream) -> None:
    @torch.compiler.disable
    def pauses() -> None:
        stream.pause()

    @torch.compile(backend=backend)
    def step(x: Tensor) -> Tensor:
        y = x.sin()
        pauses()
        return y + 1

    assert stream.resume() is None
    assert torch.equal(step(torch.ones(3)), torch.ones(3).sin() + 1)
    assert not extension().key_included()
    assert stream.resume() is None and extension().key_included()
    assert torch.equal(step(torch.ones(3)), torch.ones(3).sin() + 1)


def test_what_pauses_in_compiled_code_takes_the_key(stream: Stream) -> None:
    key = guarded.Key(extension(), stream.flush, stream._defers)
    assert stream.resume() is None
    key.apart(stream.flush)
    assert key.is_in()
    key.apart(stream.pause)
    assert not key.is_in()


def test_what_closes_leaves_torch_as_it_was(stream: Stream) -> None:
    from torch._dynamo import eval_frame

    own = torch._C._dynamo.eval_frame.set_eval_frame
    assert stream.resume() is None
    assert eval_frame.set_eval_frame is not own and eval_frame._maybe_set_eval_frame is not own
    stream.close()
    assert eval_frame.set_eval_frame is own and eval_frame._maybe_set_eval_frame is own


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_inductor_compiles_once_what_generates_and_what_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # threads of its pool would be in a stream's way
    code = """
        import torch
        from torch import nn
        from torch._dynamo.utils import counters
        from transformers import GPT2Config, GPT2LMHeadModel
        from grape.streams import Settings, open_stream
        torch.manual_seed(0)
        size = dict(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=32)
        model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=1, eos_token_id=None, pad_token_id=0)).eval()
        model.generation_config.cache_implementation = "static"
        model.forward = torch.compile(model.forward)
        net = nn.Linear(8, 8)
        start = {name: value.clone() for name, value in net.state_dict().items()}
        called = torch.compile(net)

        def cell():
            with torch.no_grad():
                out = [model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=8, do_sample=False)]
            net.load_state_dict(start)
            optimizer = torch.optim.Adam(net.parameters())
            for step in range(12):
                called(torch.linspace(-1, 1, 8) * 1.1).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            return [*out, *(value.clone() for value in net.state_dict().values())]

        def graphs():
            return counters["stats"]["unique_graphs"]

        cell()
        expected, compiled = cell(), graphs()
        stream = open_stream(Settings(shortest=1, hot=2, settled=0, patience=0, price=0, doubt=0, device="cpu"))
        found = [cell(), cell(), cell()]
        stream.close()
        print(compiled > 1, graphs() - compiled, stream.evidence().matched > 100)
        found.append(cell())
        print(graphs() - compiled, all(torch.equal(*both) for one in found for both in zip(one, expected)))
    """
    lines_of(
        code[: code.index("        stream = ")]
    )  # fills Inductor's cache: whoever compiles keeps threads of a pool
    assert lines_of(code)[-2:] == ["True 0 True", "0 True"]


class PretendedKey(guarded.Key):
    """`fails` raises when what is pending is issued for the nth time."""

    def __init__(self, fails: int) -> None:
        self.fails, self.issued, self.inside = fails, 0, True
        super().__init__(ModuleType("none"), self.issue, lambda: True)

    def issue(self) -> None:
        self.issued += 1
        if self.issued == self.fails:
            raise ValueError("of what was pending")

    def is_in(self) -> bool:
        return self.inside

    def leave(self) -> None:
        self.inside = False
        self.issue()

    def enter(self) -> None:
        self.inside = True


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize("fails", [1, 2, 3, 4, 5])
def test_an_error_of_what_is_pending_is_raised_and_nothing_else_changes(fails: int) -> None:
    """At the call, and where the key leaves behind a graph."""
    from torch._C._dynamo.eval_frame import get_eval_frame_callback

    torch._dynamo.reset()
    backend = Backend("eager")

    @torch.compile(backend=backend)
    def step(x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y + 1

    step(torch.ones(3))
    key = PretendedKey(fails)
    undo = guarded.watch(key)
    try:
        with pytest.raises(ValueError, match="of what was pending"):
            step(torch.ones(3))
        assert key.inside and get_eval_frame_callback() is None
        step(torch.ones(3))
        assert key.inside and get_eval_frame_callback() is None and key.issued > fails
    finally:
        undo()
    assert backend.compiled == 2


@pytest.mark.parametrize("name", ["_maybe_set_eval_frame", "skip_code", "_stance"])
def test_a_torch_without_these_names_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo import eval_frame

    own = eval_frame.set_eval_frame
    monkeypatch.delattr(eval_frame, name)
    undo = guarded.watch(PretendedKey(0))
    assert eval_frame.set_eval_frame is own
    undo()
    assert eval_frame.set_eval_frame is own
