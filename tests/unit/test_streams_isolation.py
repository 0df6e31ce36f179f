"""What would break silently under operator streams if it were ignored: modes, subclasses, threads, forks, kernels of
others, raw memory, and what is left when a stream closes."""

from __future__ import annotations

import asyncio
import copy
import io
import os
import re
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from grape import native
from grape.streams import Settings, Stream, open_stream, session
from grape.tracing.positions import OWN_FOLDER
from tests.processes import lines_of, lines_of_an_interpreter
from tests.property.stream_programs import device, flat, needs_compiler  # noqa: F401
from tests.unit.test_streams_contract import EAGER_TO_MATCH, agrees, chain, under_a_stream

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore")]


def extension() -> Any:
    return native.load()


def has_kernel(name: str = "aten::add.Tensor") -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "Fake"))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    until = time.monotonic() + 20
    while session._closed and time.monotonic() < until:  # a thread that feeds a queue ends a little later
        session.settle()
        time.sleep(0.01)
    session.settle()
    assert session._current is None and not session._closed
    assert not has_kernel() and not extension().key_included()


# Off


def test_a_closed_stream_leaves_no_kernel_no_key_and_no_exchanged_method() -> None:
    numpy, start = torch.Tensor.numpy, vars(threading.Thread)["_bootstrap_inner"]
    stream = open_stream()
    assert isinstance(stream, Stream)
    assert has_kernel() and extension().key_included()
    assert vars(threading.Thread)["_bootstrap_inner"] is not start
    assert torch.Tensor.numpy is numpy  # no attribute of a C type is set
    stream.close()
    stream.close()
    assert not has_kernel() and not extension().key_included()
    assert vars(threading.Thread)["_bootstrap_inner"] is start


def test_one_stream_at_a_time() -> None:
    with open_stream() as stream:  # type: ignore[union-attr]
        assert isinstance(stream, Stream)
        assert open_stream() == native.Unavailable("a stream is open already")


on_the_cpu = pytest.mark.parametrize("device", ["cpu"], indirect=True)
"""What has a process of its own asks for its device itself."""


@on_the_cpu
def test_a_process_ends_well_with_a_stream_open_and_with_results_of_a_closed_one() -> None:
    code = """
        import torch
        from grape.streams import Settings, open_stream
        stream = open_stream(Settings(shortest=1, hot=2, settled=0, patience=0, price=0, doubt=0))
        kept = []
        for _ in range(40):
            kept.append(torch.tanh(torch.ones(4) * 2))
        stream.close()
        again = open_stream(Settings(shortest=1, hot=2, settled=0, patience=0, price=0, doubt=0))
        for _ in range(40):
            kept.append(torch.tanh(torch.ones(4) * 2))
        assert again.evidence().matched > 0
        print("end")
    """
    assert lines_of_an_interpreter(code) == ["end"]


# 1, 2: keys


class Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_every_operator_once() -> None:
    def loop() -> list[Any]:
        x = torch.ones(4)
        for _ in range(20):
            x = chain(x)
        with Log() as log:
            for _ in range(20):
                x = chain(x)
            log.names.append(str(x.sum().item()))
        return [x, log.names]

    agrees(loop)


class Doubled(Tensor):
    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Doubled:
        made: Doubled = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*[a.inner if isinstance(a, Doubled) else a for a in args], **(kwargs or {}))
        return Doubled(result * 2)


def test_a_subclass_sees_its_operators() -> None:
    def loop() -> list[Tensor]:
        out = []
        for i in range(60):
            x = torch.ones(3)
            y = (Doubled(x) if i % 5 == 4 else x) * 3 + 1
            out.append(y.inner if isinstance(y, Doubled) else y)
        return out

    agrees(loop)


def test_meta_and_fake_tensors_pass_through() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def loop() -> list[Any]:
        out: list[Any] = []
        for i in range(50):
            out.append(chain(torch.ones(3)))
            if i % 6 == 5:
                out.append(str(chain(torch.ones(3, device="meta"))))
                with FakeTensorMode():
                    out.append(tuple(chain(torch.ones(5)).shape))
        return out

    agrees(loop)


def test_functional_transforms_and_autocast() -> None:
    def loop() -> list[Any]:
        x, w, out = torch.linspace(-1, 1, 4), torch.eye(4), []
        for i in range(40):
            out.append(torch.func.grad(lambda t: torch.tanh(t * 2).sum())(x))
            out.append(torch.vmap(chain)(x.expand(3, 4)))
            with torch.autocast("cpu", torch.bfloat16, enabled=i % 3 > 0):
                out.append((w @ w * 0.5).float())
        return out

    agrees(loop)


def test_products_within_an_operator_that_autocast_does_not_know() -> None:
    def loop() -> list[Any]:
        theta, weight, out = torch.linspace(-1, 1, 6).view(1, 2, 3), torch.linspace(0, 1, 18).view(2, 3, 3), []
        for i in range(60):
            with torch.autocast("cpu", torch.bfloat16, enabled=i % 20 > 9):
                grid = nn.functional.affine_grid(theta * (1 + i / 8), [1, 2, 4, 4], align_corners=True) * 1
                pairs = nn.functional.bilinear(theta[0] * (i / 7), theta[0] + 1, weight) * 1
                out += [(str(each.dtype), each.float()) for each in (grid, pairs)]
        return out

    agrees(loop)


def test_an_encoder_layer_under_autocast() -> None:
    """On the CPU its fast path is one operator, whose products autocast casts."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    attention = nn.MultiheadAttention(16, 2, batch_first=True).eval()

    def loop() -> list[Any]:
        x, out = torch.linspace(-1, 1, 640).view(4, 10, 16), []
        with torch.no_grad():
            for i in range(60):
                with torch.autocast("cpu", torch.bfloat16, enabled=i % 20 > 9):
                    made = [layer(x * (1 + i / 8)) * 1, attention(x, x, x)[0] * 1]
                    out += [(str(one.dtype), one.float()) for one in made]
        return out

    agrees(loop)


def test_an_operator_with_a_kernel_of_its_own_at_the_key_refuses_the_stream() -> None:
    library = torch.library.Library("grape_test_key", "DEF")
    library.define("own(Tensor x) -> Tensor")
    library.impl("own", lambda x: x, "Fake")
    try:
        refused = open_stream()
        assert isinstance(refused, native.Unavailable)
        assert "grape_test_key::own" in refused.reason
    finally:
        library._destroy()


# Operators of others


def test_custom_operators_run_each_time_also_those_defined_in_the_session() -> None:
    calls = []

    def loop() -> list[Any]:
        library = torch.library.Library("grape_test_custom", "DEF")
        try:
            out = []
            for i in range(40):
                y = chain(torch.ones(3))
                if i == 20:
                    library.define("noted(Tensor x) -> Tensor")
                    library.impl("noted", lambda x: (calls.append(float(x.sum())), x * 2)[1], "CPU")
                if i >= 20:
                    y = torch.ops.grape_test_custom.noted(y)
                out.append(y)
            return [out, list(calls)]
        finally:
            library._destroy()
            calls.clear()

    agrees(loop)


def test_an_operator_of_torch_with_a_kernel_in_python_runs_as_written() -> None:
    calls = []
    library = torch.library.Library("aten", "IMPL")
    library.impl("sinh", lambda x: (calls.append(1), x * 0 + 7)[1], "CPU")
    try:
        _, evidence = under_a_stream(lambda: [chain(torch.sinh(torch.ones(2))) for _ in range(40)])
    finally:
        library._destroy()
    assert len(calls) == 40
    assert evidence.written["a kernel in Python"] > 0


def test_a_kernel_in_python_that_comes_and_goes_between_iterations() -> None:
    def loop() -> list[Any]:
        x, log = torch.ones(4), []
        library = torch.library.Library("aten", "IMPL")
        for i in range(90):
            if i == 30:
                library.impl("sinh", lambda t, i=i: (log.append("called"), t * 2)[1], "CPU")
            if i == 60:
                library._destroy()
            y = torch.sinh(torch.tanh(x * 0.5))
            log.append("between")
            log.append((y.mean() + y).sum().item())
        return log

    assert agrees(loop).written["a kernel in Python"] >= 15


def test_sparse_nested_and_quantized_tensors() -> None:
    def loop() -> list[Any]:
        out = []
        for _ in range(30):
            x = chain(torch.eye(3))
            out.append((x.to_sparse() @ x).abs())
            out.append(torch.nested.nested_tensor([x, x[:2]]).to_padded_tensor(0.0) * 2)
            out.append(torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize() + 1)
        return out

    agrees(loop)


# 3: threads, forks


def test_a_thread_of_the_session_reads_a_result_that_is_pending() -> None:
    def loop() -> list[Any]:
        x, read = torch.randn(16, 16), []
        for i in range(30):
            y = torch.tanh(x * (1 + i % 2))
            thread = threading.Thread(target=lambda y=y: read.append(float((y @ x).sum())))
            thread.start()
            thread.join()
        return read

    assert agrees(loop).written["another thread"] > 0


def test_a_thread_that_outlives_the_stream_runs_on() -> None:
    go, read = threading.Event(), []

    def work() -> None:
        go.wait()
        read.append(chain(torch.ones(3)))

    stream = open_stream(EAGER_TO_MATCH)
    assert isinstance(stream, Stream)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    stream.close()
    assert has_kernel(), "the thread carries the key"
    assert open_stream() == native.Unavailable("a stream that was closed is still in use")
    go.set()
    thread.join()
    assert torch.equal(read[0], chain(torch.ones(3)))
    session.settle()
    assert not has_kernel()


def test_the_monitor_of_a_progress_bar_does_not_keep_a_stream() -> None:
    def loop() -> list[Tensor]:
        x = torch.ones(3)
        return [chain(x) for _ in tqdm.tqdm(range(40), disable=None, file=io.StringIO(), mininterval=0)]

    tqdm = pytest.importorskip("tqdm")
    tqdm.tqdm.monitor = None
    for _ in range(2):
        _, evidence = under_a_stream(loop, EAGER_TO_MATCH)
        assert isinstance(tqdm.tqdm.monitor, threading.Thread) and tqdm.tqdm.monitor.is_alive()
        assert evidence.matched > 0


def test_a_thread_that_ran_before_refuses_the_stream() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="loader")
    thread.start()
    try:
        assert open_stream() == native.Unavailable("thread loader runs, and its operators would not be seen")
    finally:
        stop.set()
        thread.join()


def test_a_daemon_that_ran_before_refuses_the_stream_where_code_of_the_person_runs_in_it() -> None:
    stop = threading.Event()

    def prefetch() -> None:
        stop.wait()

    for target, refused in ((prefetch, True), (stop.wait, False)):
        thread = threading.Thread(target=target, name="prefetcher", daemon=True)
        thread.start()
        try:
            opened = open_stream()
            if isinstance(opened, Stream):
                opened.close()
            unseen = native.Unavailable("thread prefetcher runs, and its operators would not be seen")
            assert (opened == unseen) == refused
        finally:
            stop.set()
            thread.join()
            stop.clear()


@contextmanager
def _executor() -> Iterator[Callable[[Callable[[], float]], float]]:
    with ThreadPoolExecutor(1) as executor:
        yield lambda task: executor.submit(task).result()


@contextmanager
def _loop_of_asyncio() -> Iterator[Callable[[Callable[[], float]], float]]:
    """In a daemon thread, as libraries of files keep one."""

    async def run(task: Callable[[], float]) -> float:
        return task()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield lambda task: asyncio.run_coroutine_threadsafe(run(task), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.mark.parametrize("serving", [_executor, _loop_of_asyncio])
def test_what_a_thread_is_given_to_do_that_ran_before_reads_a_result_that_is_pending(serving: Any) -> None:
    def loop() -> list[Any]:
        x, read = torch.randn(16, 16), []
        for _ in range(40):
            y = torch.tanh(x * 0.5)
            read.append(given(lambda x=x, y=y: float((y @ x).sum())))
            x = y + 0.1
        return read

    with serving() as given:
        given(lambda: float(torch.ones(2).sum()))
        for _ in range(2):
            evidence = agrees(loop)
            assert evidence.matched > 0 and evidence.written["another thread"] > 0
        assert not has_kernel()


def test_threads_that_ran_before_and_take_what_cannot_be_seen_refuse_the_stream() -> None:
    """Those of `multiprocessing.pool`, which also pickle in their own time, and timers."""
    before = set(threading.enumerate())
    with ThreadPool(1) as pool:
        pool.map(len, [[]])
        opened = open_stream()
        assert isinstance(opened, native.Unavailable) and "would not be seen" in str(opened)
        pool.terminate()
    for thread in set(threading.enumerate()) - before:
        thread.join()
    timer = threading.Timer(60, print)
    timer.daemon, timer.name = True, "later"
    timer.start()
    assert open_stream() == native.Unavailable("thread later runs, and its operators would not be seen")
    timer.cancel()
    timer.join()


def test_a_task_in_an_executor_that_began_before_refuses_the_stream() -> None:
    stop, begun = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1, "early") as executor:
        executor.submit(lambda: begun.set() or stop.wait())
        begun.wait()
        assert open_stream() == native.Unavailable("thread early_0 runs, and its operators would not be seen")
        stop.set()


def test_a_forked_child_sees_what_was_pending_and_runs_as_written() -> None:
    def loop() -> list[int]:
        x, codes = torch.ones(4), []
        for _ in range(20):
            x = chain(x)
        for _ in range(3):
            x = chain(x)
            y = x * 2
            child = os.fork()
            if child == 0:
                fine = (
                    bool(torch.isfinite(y).all()) and torch.equal(chain(y), chain(y.clone())) and not torch.equal(x, y)
                )
                os._exit(0 if fine and torch.equal(y, x * 2) else 1)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return codes

    assert under_a_stream(loop)[0] == [0, 0, 0]


def test_workers_of_a_data_loader() -> None:
    data = torch.arange(32.0).reshape(16, 2)

    def loop() -> list[Any]:
        x = torch.ones(2, 2)
        for _ in range(20):
            x = chain(x)
        moved = torch.utils.data.TensorDataset(data + x.sum() * 0)
        return [chain(batch) for (batch,) in torch.utils.data.DataLoader(moved, batch_size=2, num_workers=1)]

    agrees(loop)


# 5: switches

_CHOOSE_NO_KERNEL = {
    "_set_autograd_fallback_mode": "what a kernel without a derivative does",
    "_set_backcompat_broadcast_warn": "warnings",
    "_set_backcompat_keepdim_warn": "warnings",
    "_set_cached_tensors_enabled": "the compiler's trees of graphs",
    "_set_check_sparse_tensor_invariants": "sparse tensors, which are never deferred",
    "_set_conj": "a dispatch key of the tensor, which is compared",
    "_set_default_mobile_cpu_allocator": "where nothing is deferred",
    "_set_dispatch_mode": "a mode, below which nothing is deferred",
    "_set_dtensor_allow_implicit_replication": "how operators of tensors of several ranks are made",
    "_set_fwd_grad_enabled": "above the operators",
    "_set_generator_metaclass": "a class",
    "_set_grad_enabled": "above the operators",
    "_set_grad_layout_enforcement_enabled": "above the operators",
    "_set_graph_exec_group": "above the operators",
    "_set_graph_executor_optimize": "TorchScript",
    "_set_meta_in_tls_dispatch_include": "a dispatch key of the thread",
    "_set_miopen_immediate": "another vendor's",
    "_set_multithreading_enabled": "in which thread a backward runs",
    "_set_neg": "a dispatch key of the tensor, which is compared",
    "_set_only_lift_cpu_tensors": "fake tensors",
    "_set_override_stale_capture_stream": "captures",
    "_set_print_stack_traces_on_fatal_signal": "signals",
    "_set_should_use_format_with_string_table": "TorchScript",
    "_set_skip_next_torch_function": "above the operators",
    "_set_storage_access_error_msg": "fake tensors",
    "_set_storage_data_ptr_access_error_msg": "fake tensors",
    "_set_tensor_metadata": "a tensor's layout, which is compared",
    "_set_thread_name": "a name",
    "_set_throw_on_mutable_data_ptr": "fake tensors",
    "_set_torch_function_state": "above the operators",
    "_set_tracing_state": "TorchScript",
    "_set_value_trace": "TorchScript",
    "_set_view_replay_enabled": "above the operators",
    "_set_warn_deprecated_on_mutable_data_ptr": "warnings",
    "_set_warn_on_accumulate_grad_stream_mismatch": "warnings",
    "_set_worker_pids": "loaders",
    "_set_worker_signal_handlers": "loaders",
}


def test_each_switch_of_torch_that_chooses_kernels_is_watched() -> None:
    """One that a new torch brings is to be judged: what was recorded before it was set is no record of what comes."""
    names = Path(native.__file__).parent / "src" / "process" / "watched.h"
    watched = set(re.findall(r'Watched\{"(\w+)"', names.read_text()))
    switches = {name for name in dir(torch._C) if name.startswith("_set_")}
    assert "_set_cudnn_enabled" in watched and "_set_mkldnn_enabled" in switches
    assert sorted(switches - watched - set(_CHOOSE_NO_KERNEL)) == []


# 6: raw memory


@pytest.mark.parametrize("before", [True, False], ids=["exported first", "exported later"])
def test_memory_that_numpy_writes_is_never_deferred(before: bool) -> None:
    def loop() -> list[Tensor]:
        array = np.ones(4, dtype=np.float32)
        x, y, out = torch.from_numpy(array), torch.zeros(4), []
        view = y.numpy() if before else None
        for i in range(40):
            z = x * 2 + y
            array[:] = i
            y.add_(1)
            if view is None:
                view = y.numpy()
            view[0] = i
            out.append(z + y)
        return out

    result, _ = under_a_stream(loop)
    assert all(torch.equal(a, b) for a, b in zip(result, loop(), strict=True))


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.numpy().tolist(),
        lambda t: np.asarray(t).tolist(),
        lambda t: t.tolist(),
        lambda t: np.from_dlpack(t).tolist(),
        lambda t: bytes(t.untyped_storage()),
        lambda t: list(t.untyped_storage()),
        lambda t: (lambda data: [float(v) for v in data])(
            (__import__("ctypes").c_float * 4).from_address(t.data_ptr())
        ),
        lambda t: copy.deepcopy(t),
        lambda t: torch.load(_saved(t)),
        lambda t: t.clone().apply_(lambda x: x + 1),
        lambda t: t.clone().map_(t, lambda x, y: x * y),
    ],
)
def test_reads_without_an_operator_find_the_result(read: Callable[[Tensor], Any]) -> None:
    def loop() -> list[Any]:
        x, out = torch.ones(4), []
        for _ in range(30):
            x = chain(x)
            x.mul_(0.5)
            out.append(read(x))
        return out

    agrees(loop)


def _saved(t: Tensor) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(t, file)
    file.seek(0)
    return file


def test_a_storage_that_is_held_is_read_through() -> None:
    def loop() -> list[Any]:
        x = torch.ones(4)
        storage, out = x.untyped_storage(), []
        for _ in range(30):
            y = torch.tanh(torch.ones(3))
            x.add_(y.sum())
            out.append([storage[i] for i in range(16)])
        return out

    agrees(loop, Settings(shortest=13, hot=2, settled=0, patience=0, price=0, doubt=0))


def test_shared_memory_moves_a_result() -> None:
    def loop() -> list[Tensor]:
        out = []
        for _ in range(30):
            x = chain(torch.ones(4)).share_memory_()
            x.add_(1)
            out.append(x * 2)
        return out

    agrees(loop)


# 7, 9: autograd


def test_no_reference_of_ours_turns_a_steal_or_an_addition_in_place_into_a_copy() -> None:
    w = torch.ones(3, requires_grad=True)

    def loop() -> list[Any]:
        operators = []
        for i in range(30):
            w.grad = None
            y = w * 2
            if i < 25:
                (y.tanh() + y.sin()).sum().backward()
                continue
            with Log() as log:
                (y.tanh() + y.sin()).sum().backward()
            operators.append([name for name in log.names if "clone" in name or "add" in name or "copy" in name])
        return operators

    agrees(loop)


# 11, 16


def test_what_is_issued_meets_no_mode_of_the_person() -> None:
    def loop() -> list[Any]:
        x, seen = torch.ones(2, 2), []
        for _ in range(30):
            y = torch.tanh(x @ x)
            with Log() as log, torch.autocast("cpu", torch.bfloat16):
                total = y.sum().item()
            seen.append([total, log.names])
        return seen

    agrees(loop)


def test_a_stream_that_is_closed_inside_a_backward() -> None:
    w = torch.ones(3, requires_grad=True)
    stream = open_stream(EAGER_TO_MATCH)
    assert isinstance(stream, Stream)
    for _ in range(20):
        (w * 2).tanh().sum().backward()
    y = (w * 2).tanh()
    y.register_hook(lambda g: stream.close())
    w.grad = None
    y.sum().backward()
    expected = 2 * (1 - torch.tanh(torch.full((3,), 2.0)) ** 2)
    assert torch.allclose(w.grad, expected)  # type: ignore[arg-type]
    assert torch.equal(chain(torch.ones(2)), chain(torch.ones(2)))
    session.settle()


# 13: lifetimes elsewhere


def test_a_result_may_die_on_another_thread_and_in_a_cycle() -> None:
    class Node:
        pass

    def loop() -> list[Tensor]:
        box: list[Any] = []
        for i in range(40):
            x = chain(torch.ones(4) * (i % 3))
            node = Node()
            node.me, node.x = node, x  # type: ignore[attr-defined]
            box.append(x)
            del x, node
            if i % 4 == 3:
                dying = box[:-1]
                box = box[-1:]
                thread = threading.Thread(target=dying.clear)
                thread.start()
                thread.join()
        return box

    agrees(loop)


@pytest.mark.parametrize("since", [0, 40])
def test_a_lazy_clone_of_a_result(since: int) -> None:
    """Also of one that was deferred without such a clone before."""

    def loop() -> list[Tensor]:
        x, out = torch.ones(4), []
        for i in range(60):
            a = chain(x)._lazy_clone() if i >= since and i % 4 == 3 else chain(x)
            a.add_(1)
            out.append(torch.tanh(a) + x)
        return out

    agrees(loop)


def test_a_module_of_the_person_with_packed_sequences() -> None:
    def loop() -> list[Any]:
        torch.manual_seed(0)
        rnn, out = nn.LSTM(3, 4), []
        for i in range(12):
            lengths = torch.tensor([4, 2 + i % 2]) + 0
            packed = nn.utils.rnn.pack_padded_sequence(torch.randn(4, 2, 3), lengths)
            result, _ = rnn(packed)
            out.append(nn.utils.rnn.pad_packed_sequence(result)[0])
            out.append(torch.tensor_split(torch.arange(6.0) * 2, torch.tensor([1, 3]) + 1))
        return out

    agrees(loop, Settings(shortest=1, hot=2, settled=0, patience=0, price=0, doubt=0))


# Code that Inductor made


@on_the_cpu
@pytest.mark.timeout(300)
def test_compiled_code_finds_what_is_pending_issued() -> None:
    """Its kernels take pointers: neither what they read nor what runs between them may be pending."""
    code = """
        import sys, torch
        from grape.streams import Settings, open_stream
        torch.manual_seed(0)
        net, x0 = torch.nn.Linear(8, 8), torch.randn(4, 8)
        stream = open_stream(Settings(shortest=1, hot=2, settled=0, patience=0, price=0, doubt=0))
        imported = "torch._inductor.output_code" in sys.modules

        @torch.compile
        def inner(y):
            return torch.sin(torch.mm(y, y.t())) @ y + 1

        def loop():
            x, out = x0, []
            for _ in range(40):
                y = (net(x) * 0.5 + x).detach().requires_grad_()
                inner(y).sum().backward()
                with torch.no_grad():
                    x = (y.grad * 0.3).tanh()
                net.zero_grad()
                out.append(x)
            return out

        found = loop()
        stream.pause()
        between = loop()
        stream.resume()
        again = loop()
        stream.close()
        assert stream.evidence().matched > 100 and stream.evidence().own_ns < 1e10
        expected = loop()
        from torch._inductor.output_code import CompiledFxGraph
        print(imported, CompiledFxGraph.__call__.__module__, len([f for f in sys.meta_path if "grape" in repr(f)]))
        print(*(all(map(torch.equal, one, expected)) for one in (found, between, again)))
    """
    assert lines_of(code) == ["False torch._inductor.output_code 0", "True True True"]


# A pause


def test_what_was_recorded_outlives_a_pause_in_which_nothing_is_deferred() -> None:
    def loop(n: int) -> list[Tensor]:
        return [chain(torch.full((4,), float(i % 3))) for i in range(n)]

    expected = loop(40)
    stream = open_stream(EAGER_TO_MATCH)
    assert isinstance(stream, Stream)
    start = vars(threading.Thread)["_bootstrap_inner"]
    first = loop(40)
    seen = stream.evidence()
    stream.pause()
    assert not extension().key_included() and vars(threading.Thread)["_bootstrap_inner"] is not start
    between = loop(40)
    assert stream.evidence().seen == seen.seen
    assert stream.resume() is None
    again = loop(40)
    after = stream.evidence().since(seen)
    stream.close()
    assert after.recorded == 0 and after.matched > 0.8 * after.seen
    assert flat(first) == flat(between) == flat(again) == flat(expected)
    assert isinstance(stream.resume(), native.Unavailable)


def test_a_record_goes_on_behind_a_pause() -> None:
    stream = open_stream(Settings(settled=100, price=0))
    assert isinstance(stream, Stream)
    x, out = torch.ones(4), []
    for _ in range(60):
        stream.resume()
        for _ in range(3):
            x = chain(x)
        stream.pause()
        out.append(x * 1.0)
    evidence = stream.evidence()
    stream.close()
    assert evidence.matched > 0.5 * evidence.seen
    y = torch.ones(4)
    for found in out:
        for _ in range(3):
            y = chain(y)
        assert torch.equal(found, y)


def test_memory_that_is_exposed_and_modes_that_change_during_a_pause() -> None:
    a = torch.zeros(3)

    def loop() -> float:
        for _ in range(20):
            a.add_(1).mul_(1.0)
        return float(array.sum()) if array is not None else 0.0

    array: Any = None
    stream = open_stream(EAGER_TO_MATCH)
    assert isinstance(stream, Stream)
    loop()
    stream.pause()
    array = a.numpy()
    stream.resume()
    assert loop() == 3 * 40.0
    stream.pause()
    torch.set_default_dtype(torch.float64)
    try:
        stream.resume()
        assert stream.evidence().bytes == 0  # forgotten
        assert torch.ones(2).add(1).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
        stream.close()


@pytest.mark.parametrize("paused", [True, False])
@pytest.mark.parametrize("file", [OWN_FOLDER + "runtime/asks.py", OWN_FOLDER + "asks.py", "<cell>"])
def test_who_asks_for_an_address(file: str, paused: bool) -> None:  # E4
    """Memory stays deferrable only where regions ask, and only during a pause."""
    asking: dict[str, Any] = {}
    exec(compile("def ask(tensor):\n    return tensor.data_ptr()", file, "exec"), asking)
    a = torch.zeros(3)

    def loop() -> None:
        for _ in range(20):
            a.add_(1).mul_(1.0)

    stream = open_stream(EAGER_TO_MATCH)
    assert isinstance(stream, Stream)
    with stream:
        loop()
        if paused:
            stream.pause()
        asking["ask"](a)
        if paused:
            stream.resume()
        before = stream.evidence()
        loop()
        matched = stream.evidence().since(before).matched
    assert (matched > 0) == (paused and "runtime" in file)
    assert a.tolist() == [40.0] * 3


def test_an_array_that_was_exported_before_the_stream_opened() -> None:
    x = torch.zeros(4)
    array = x.numpy()
    plain, expected = torch.zeros(4), []
    for i in range(40):
        plain.add_(1)
        expected.append((float(plain.sum()), plain * 2))
        plain[0] = i

    def again() -> list[Any]:
        out = []
        for i in range(40):
            x.add_(1)
            out.append((float(array.sum()), x * 2))
            array[0] = i
        return out

    result, _ = under_a_stream(again)
    assert flat(result) == flat(expected)


def test_a_network_that_was_copied_is_served() -> None:
    """`deepcopy` shows each storage to Python, where nobody keeps it."""
    net, x = copy.deepcopy(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))), torch.randn(4, 8)
    _, evidence = under_a_stream(lambda: [net(x).sum() for _ in range(40)], EAGER_TO_MATCH)
    assert evidence.matched > 0.7 * evidence.seen


@pytest.mark.parametrize("expression", ["{p.data_ptr() for p in ps}", "set(map(Tensor.data_ptr, ps))"])
def test_recurrent_layers_may_compare_where_their_weights_lie(expression: str) -> None:
    source = f"class RNNBase:\n    def flatten_parameters(ps):\n        return len({expression})"
    names: dict[str, Any] = {"Tensor": Tensor}
    exec(compile(source, "/lib/torch/nn/modules/rnn.py", "exec"), names)
    ps = [torch.randn(4) for _ in range(3)]

    def loop() -> list[Any]:
        return [(names["RNNBase"].flatten_parameters(ps), torch.tanh(ps[0] * ps[1]) - ps[2]) for _ in range(40)]

    evidence = agrees(loop, EAGER_TO_MATCH)
    assert "memory that is not torch's alone" not in evidence.written


@pytest.mark.parametrize("hold", [lambda storage: storage, weakref.ref])
def test_a_storage_that_python_can_reach_is_not_deferred(hold: Callable[[Any], Any]) -> None:
    def loop() -> list[float]:
        x, read = torch.ones(4), []
        held = hold(x.untyped_storage())
        for _ in range(40):
            torch.tanh(x * 1.5, out=x)
            x.add_(0.25)
            _ = torch.tanh(torch.ones(3) * 2) - 1
            storage = held() if isinstance(held, weakref.ref) else held
            read.append(storage[0])
        return read

    agrees(loop, EAGER_TO_MATCH)


# TorchScript: it runs behind what is pending, and so does what it differentiated


SCRIPTED = "a call of TorchScript"
LIBRARY = """
from typing import Optional
import torch
from torch import Tensor

@torch.jit.script
def scale(x: Tensor, by: Optional[float] = None) -> Tensor:
    if by is None:
        by = 2.0
    return torch.tanh(x * by)

@torch.jit.script
class Pair:
    def __init__(self, one: Tensor, other: Tensor):
        self.one = one
        self.other = other

    def total(self) -> Tensor:
        return self.one + scale(self.other)

@torch.jit.script_if_tracing
def shift(x: Tensor) -> Tensor:
    return x + 1

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return scale(self.inner(x))

    @torch.jit.export
    def twice(self, x: Tensor) -> Tensor:
        return self.forward(self.forward(x))

net = torch.jit.script(Net())
"""


def test_calls_of_torchscript_and_their_backward_passes_are_behind_what_is_pending(device: str) -> None:  # noqa: F811
    """A call and a backward pass of each step are counted; what is between them is deferred as ever."""
    scripted: Callable[..., Tensor] = torch.jit.script(chain)

    def training() -> list[Tensor]:
        x, out = torch.ones(8, requires_grad=True), []
        for _ in range(60):
            y = scripted(torch.tanh(x * 0.5)) * 1.5
            y.sum().backward()
            out.append(chain(y.detach() + 1))
        assert x.grad is not None
        return [*out, x.grad]

    @torch.no_grad()
    def inference() -> list[Tensor]:
        x, out = torch.ones(8), []
        for _ in range(60):
            x = scripted(torch.tanh(x * 0.5)) * 1.5
            out.append(x)
        return out

    def without() -> list[Tensor]:
        x = torch.ones(8, requires_grad=True)
        for _ in range(60):
            chain(x * 0.5).sum().backward()
        assert x.grad is not None
        return [x.grad]

    training()  # it profiles its first calls
    settings = replace(EAGER_TO_MATCH, device=device)
    evidence = agrees(training, settings)
    assert evidence.written[SCRIPTED] == 120 and evidence.matched > 0.7 * evidence.seen
    evidence = agrees(inference, settings)
    assert evidence.written[SCRIPTED] == 60 and evidence.matched > 0.7 * evidence.seen
    evidence = agrees(without, settings)
    assert SCRIPTED not in evidence.written and evidence.backwards >= 60


def test_functions_of_torchscript_that_were_only_defined_are_no_obstacle(device: str, tmp_path: Path) -> None:  # noqa: F811
    """Libraries define some when they are imported."""
    (tmp_path / "library.py").write_text(LIBRARY)
    code = f"""
        from dataclasses import replace
        import torch
        import library
        from tests.unit.test_streams_contract import EAGER_TO_MATCH, agrees, chain

        def loop():
            x = torch.ones(8)
            for _ in range(40):
                x = chain(library.shift(x))
            return x

        evidence = agrees(loop, replace(EAGER_TO_MATCH, device="{device}"))
        print(evidence.matched > 0.5 * evidence.seen, evidence.written.get("{SCRIPTED}"))
    """
    assert lines_of(textwrap.dedent(code), tmp_path) == ["True None"]


@on_the_cpu
def test_nobody_waits_for_the_engine_who_holds_what_it_waits_for() -> None:
    """K5: with the GIL, which whoever has the lock needs to drop a tensor of Python's."""
    code = """
import faulthandler, threading, time, torch
from tests.unit.test_streams_contract import EAGER_TO_MATCH
from grape.streams import open_stream
faulthandler.dump_traceback_later(60, exit=True)
stop = []
def other():
    x = torch.ones(8)
    while not stop:
        for _ in range(30): x = (x * 0.9).tanh()
        x.numpy()
with open_stream(EAGER_TO_MATCH):
    threads = [threading.Thread(target=other) for _ in range(3)]
    for thread in threads: thread.start()
    x, end = torch.ones(8), time.monotonic() + 4
    while time.monotonic() < end: x = (x * 0.9 + 0.1).tanh()
    stop.append(1)
    for thread in threads: thread.join()
"""
    assert lines_of(code) == []
