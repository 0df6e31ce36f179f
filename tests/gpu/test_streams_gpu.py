"""Operator streams on a GPU: segments as CUDA graphs leave what eager code leaves, and nothing else."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # optimizers import it, and it wraps functions of torch for good
from torch import Tensor, nn

from benchmarks._numbering import level
from grape import native
from grape.streams import Evidence, Settings, Stream, open_stream, session
from tests.processes import lines_of_an_interpreter
from tests.property.stream_cases import CASES, RAISES, batches, mlp
from tests.property.stream_programs import flat, needs_compiler

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]

EAGER_TO_MATCH = Settings(device="cuda", shortest=1, hot=2, settled=0, patience=0, price=0, doubt=0)


@pytest.fixture(autouse=True)
def the_same_kernels_each_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    yield
    torch.cuda.synchronize()
    session.settle()
    extension: Any = native.load()
    assert session._current is None and not session._closed
    assert not extension.key_included()


def agrees(function: Callable[[], Any], settings: Settings = EAGER_TO_MATCH) -> Evidence:
    """Twice plain, to know that it repeats itself, then under a stream."""
    plains = []
    for _ in range(2):
        level()
        torch.manual_seed(1)
        plains.append(flat(function()))
    assert plains[0] == plains[1], "the program does not repeat itself"
    level()
    torch.manual_seed(1)
    stream = open_stream(settings)
    assert isinstance(stream, Stream), stream
    with stream:
        result = function()
    evidence = stream.evidence()
    different = [place for place, (a, b) in enumerate(zip(flat(result), plains[0], strict=True)) if a != b]
    assert not different, f"differs at {different[:5]}: {evidence}"
    return evidence


def chain(x: Tensor) -> Tensor:
    return torch.tanh(x * 1.5 + 0.25) - x.mean()


def test_a_network_whose_state_was_copied_is_served() -> None:
    """`deepcopy` shows each storage to Python, where nobody keeps it. Python 3.12 has its weak references elsewhere."""
    net, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).cuda(), torch.randn(4, 8, device="cuda")
    best = copy.deepcopy(net.state_dict())

    def loop() -> list[Tensor]:
        net.load_state_dict(best)
        return [net(x).sum() for _ in range(40)]

    evidence = agrees(loop)
    assert "memory that is not torch's alone" not in evidence.written


def test_positions_match_wherever_they_lie() -> None:
    embedding, positions = nn.Embedding(9, 8).cuda(), torch.arange(80, device="cuda") % 9
    evidence = agrees(lambda: [torch.tanh(embedding(positions[i])) for i in range(80)])
    assert "other aliases than recorded" not in evidence.written


@pytest.mark.parametrize("name", CASES)
def test_a_program_leaves_what_eager_code_leaves(name: str) -> None:
    evidence = agrees(lambda: CASES[name]("cuda"), Settings(device="cuda", settled=0, patience=0, price=0, doubt=0))
    print(name, evidence)
    assert evidence.matched > 0.3 * evidence.seen
    assert evidence.launched > 0
    assert evidence.raised == RAISES.get(name, 0)


def test_the_programs_are_captured_without_failure() -> None:
    for name, case in CASES.items():
        settings = Settings(device="cuda", settled=0, patience=0, price=0, doubt=0)
        assert agrees(lambda case=case: case("cuda"), settings).uncaptured == {}, name


def test_operators_of_the_cpu_pass() -> None:
    def loop() -> list[Any]:
        x, y, log = torch.ones(4, device="cuda"), torch.ones(4), []
        for i in range(40):
            x = chain(x)
            y = chain(y)
            log.append([y.sum().item(), y.tolist()] if i % 3 else y.numpy().copy())
        return [x, y, log]

    evidence = agrees(loop)
    assert evidence.launched > 10
    assert evidence.written.get("host read", 0) == 0


def test_reads_find_what_is_pending() -> None:
    def loop() -> list[Any]:
        x, read = torch.ones(4, device="cuda"), []
        for _ in range(40):
            x = chain(x)
            read += [x.sum().item(), bool((x > 0).any()), x.tolist(), x.nonzero(), str(x), x.cpu(), x.cpu().numpy()]
        return read

    agrees(loop)


def test_a_copy_into_pinned_memory_and_its_event() -> None:
    def loop() -> list[Tensor]:
        x, out = torch.ones(1000, device="cuda"), []
        for _ in range(40):
            x = chain(x)
            host = torch.empty(1000, pin_memory=True)
            host.copy_(x, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            event.synchronize()
            out.append(host.clone())
        return out

    agrees(loop)


def test_two_streams() -> None:
    side = torch.cuda.Stream()

    def loop() -> list[Tensor]:
        x, out = torch.randn(512, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(0)), []
        for _ in range(40):
            y = torch.tanh(x @ x * 0.01)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(200_000)
                z = y.double().sum(0)
                y.record_stream(side)
            del y
            x = (x * 0.99).add_(0.001)
            torch.cuda.current_stream().wait_stream(side)
            out.append(z + x[0])
        return out

    evidence = agrees(loop)
    assert evidence.written["another stream"] > 0


def test_autograd_joins_streams_behind_what_is_launched_late() -> None:
    side = torch.cuda.Stream()

    def loop() -> list[Any]:
        w = torch.full((256, 256), 0.01, device="cuda", requires_grad=True)
        for _ in range(30):
            w.grad = None
            h = torch.tanh(w @ w)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(100_000)
                s = (h * h).sum()
            torch.cuda.current_stream().wait_stream(side)
            (s + (h * 2).sum()).backward()
            with torch.no_grad():
                w -= 1e-4 * w.grad
        return [w, w.grad]

    agrees(loop)


def test_a_backward_is_matched_on_the_thread_that_autograd_runs_it_on() -> None:
    def loop() -> list[Any]:
        net, (xs, _), names = mlp("cuda"), batches("cuda", 5, 16, 32), set()
        for i in range(40):
            y = net(xs[i % 5])
            y.register_hook(lambda g: names.add(threading.current_thread() is threading.main_thread()))
            net.zero_grad()
            y.pow(2).mean().backward()
        assert names == {False}
        return [p.grad for p in net.parameters()]

    evidence = agrees(loop)
    assert evidence.matched > 0.6 * evidence.seen
    assert evidence.written.get("another thread", 0) == 0


def test_a_thread_of_the_person() -> None:
    def loop() -> list[Any]:
        x, read = torch.ones(64, 64, device="cuda"), []
        for i in range(30):
            y = torch.tanh(x * (0.01 + i % 2))
            thread = threading.Thread(target=lambda y=y: read.append(float((y @ x).sum())))
            thread.start()
            thread.join()
        return read

    agrees(loop)


def test_a_capture_of_the_person_holds_their_operators() -> None:
    def loop() -> list[Tensor]:
        x, out = torch.ones(8, device="cuda"), []
        for _ in range(20):
            x = chain(x)
        static = chain(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = chain(static)
        for _ in range(20):
            static.copy_(chain(x))
            graph.replay()
            out.append(result + 1)
            x = chain(x)
        return out

    evidence = agrees(loop)
    assert evidence.written["a capture of the person's"] > 0


def test_what_cannot_be_captured_runs_as_written() -> None:
    def loop() -> list[Tensor]:
        x, out = torch.eye(8, device="cuda") * 2, []
        for i in range(40):
            y = chain(x) + torch.eye(8, device="cuda")
            inverse, _ = torch.linalg.inv_ex(y)
            out.append(chain(inverse + i * 0))
        return out

    agrees(loop)


def test_half_precision_autocast_and_attention() -> None:
    def loop() -> list[Any]:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).cuda()
        optimizer = torch.optim.AdamW(layer.parameters(), 1e-3)
        scaler, losses = torch.amp.GradScaler("cuda"), []
        x = torch.randn(4, 10, 32).cuda()
        for _ in range(30):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = layer(x).float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return [losses, list(layer.parameters())]

    agrees(loop, Settings(device="cuda", settled=0, patience=0, price=0, doubt=0))


def test_a_change_of_precision_is_noticed() -> None:
    def loop() -> list[Tensor]:
        x = torch.randn(256, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
        out = []
        try:
            for i in range(90):
                torch.backends.cuda.matmul.allow_tf32 = bool(i // 30 % 2)
                out.append(chain(x @ x))
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
        return out

    agrees(loop)


def test_results_outlive_the_stream_and_nothing_else_does() -> None:
    def once() -> list[Tensor]:
        stream = open_stream(EAGER_TO_MATCH)
        assert isinstance(stream, Stream)
        with stream:
            x = torch.ones(1000, device="cuda")
            kept = []
            for i in range(40):
                y = chain(x)
                if i > 30:
                    kept.append(y)
        assert stream.evidence().launched > 0
        return kept

    once()  # cuBLAS and the capture's stream keep their workspaces
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    kept = once()
    expected = chain(torch.ones(1000, device="cuda"))
    for _ in range(10):
        torch.randn(1000, device="cuda")  # would take memory that was freed too early
    assert all(torch.equal(y, expected) for y in kept)
    del kept, expected
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_graphs_of_the_person_and_methods_are_theirs_again() -> None:
    kind = torch.cuda.CUDAGraph
    plain = (kind.capture_begin, kind.capture_end, kind.replay)
    stream = open_stream(EAGER_TO_MATCH)
    assert isinstance(stream, Stream)
    assert kind.replay is not plain[2]
    stream.close()
    assert (kind.capture_begin, kind.capture_end, kind.replay) == plain


def test_a_stream_that_is_open_on_a_stream_of_the_person() -> None:
    side = torch.cuda.Stream()

    def loop() -> Tensor:
        x = torch.ones(8, device="cuda")
        for _ in range(40):
            x = chain(x)
        return x

    with torch.cuda.stream(side):
        assert agrees(loop).launched > 0
        torch.cuda.synchronize()


BESIDE_TORCHSCRIPT = """
    import torch
    from grape.streams import open_stream
    from tests.gpu.test_streams_gpu import EAGER_TO_MATCH, chain
    from tests.property.stream_programs import flat
    scripted = torch.jit.script(chain)

    def loop():
        x, out = torch.ones(8, device="cuda", requires_grad=True), []
        for i in range(60):
            y = chain(x * 0.5) if i < 15 else scripted(torch.tanh(x * 0.5)) * 1.5
            y.sum().backward()
            out.append(chain(y.detach() + 1))
        return flat([*out, x.grad])
"""


def test_what_torchscript_fuses_reads_what_is_pending() -> None:
    """It is launched over pointers, without an operator, in backward passes as well, and comes after its first calls.
    So once in a process without a stream, once in one with, where a second stream meets a graph that it made before.
    """
    (plain,) = lines_of_an_interpreter(f"{BESIDE_TORCHSCRIPT}\n    print(loop())")
    code = """
    with open_stream(EAGER_TO_MATCH) as stream:
        print(loop())
    counts = stream.evidence()
    print(counts.written["a call of TorchScript"], counts.matched)
    y = scripted(torch.linspace(-1, 1, 8, device="cuda", requires_grad=True) * 0.5)
    with open_stream(EAGER_TO_MATCH) as stream:
        print(loop())
        y.sum().backward()
    """
    found, counts, again = lines_of_an_interpreter(BESIDE_TORCHSCRIPT + code)
    assert found == again == plain
    assert all(int(count) > 0 for count in counts.split())


def test_functions_of_torchscript_that_never_run_are_no_obstacle() -> None:
    torch.jit.script(chain)

    def loop() -> Tensor:
        x = torch.ones(8, device="cuda")
        for _ in range(40):
            x = chain(x)
        return x

    assert agrees(loop).launched > 0


def test_a_kernel_of_jiterator_reads_what_is_pending() -> None:
    """It is launched by a function of C++ that is no operator."""
    add = torch.cuda.jiterator._create_jit_fn("template <typename T> T add(T x, T y) { return x * y + T(1); }")

    def loop() -> list[Tensor]:
        x, made = torch.linspace(-1, 1, 1024, device="cuda"), []
        for _ in range(60):
            y = chain(x)
            x = torch.sigmoid(add(x, y)) - 0.5
            made.append(x)
        return made

    assert agrees(loop).matched > 0
