"""A replay reads and writes the addresses of its capture, and equals an eager call on changed inputs bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # fake tensors import it, and it wraps functions of torch for good
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from grape.runtime.backends.protocol import CaptureFailed
from grape.runtime.backends.reference.backend import ReferenceBackend
from grape.runtime.buffers.slots import Slot


@pytest.fixture
def backend() -> Iterator[ReferenceBackend]:
    made = ReferenceBackend(poison=True)
    yield made
    made.close()


@pytest.fixture(params=[torch.no_grad, torch.inference_mode], autouse=True)
def without_gradients(request: pytest.FixtureRequest) -> Iterator[None]:
    with request.param():
        yield


def _same(ours: Any, theirs: Any) -> None:
    ours, theirs = tree_leaves(ours), tree_leaves(theirs)
    assert len(ours) == len(theirs)
    for mine, eager in zip(ours, theirs, strict=True):
        if isinstance(eager, torch.Tensor):
            assert mine.dtype == eager.dtype and mine.stride() == eager.stride()
            assert torch.equal(mine, eager)
        else:
            assert mine == eager


def _replays_equal_eager(
    backend: ReferenceBackend,
    function: Callable[..., Any],
    *inputs: torch.Tensor,
    state: dict[str, torch.Tensor] | None = None,
) -> None:
    """Three replays on changed inputs against eager calls from the same inputs, random state and written `state`."""
    state = state or {}
    placeholders = [tensor.clone() for tensor in inputs]
    graph, out = backend.capture(lambda: function(*placeholders))
    for turn in range(3):
        for place, tensor in zip(placeholders, inputs, strict=True):
            place.copy_(tensor.roll(turn, 0) if not tensor.is_floating_point() else tensor * (turn - 0.5) + turn)
        saved, before = backend.rng_state(), {name: value.clone() for name, value in state.items()}
        ours = [place.clone() for place in placeholders]
        expected = function(*ours)
        end, wanted = backend.rng_state(), {name: value.clone() for name, value in state.items()}
        backend.set_rng_state(saved)
        for name, value in before.items():
            state[name].copy_(value)
        graph.replay()
        _same(out, expected)
        _same(placeholders, ours)  # what the function wrote into its inputs
        _same([state[name] for name in wanted], list(wanted.values()))
        assert torch.equal(backend.rng_state(), end)


def _seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(7)
    return make()


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(8, 8),
    "layer norm": lambda: nn.LayerNorm(8),
    "conv": lambda: nn.Conv1d(5, 4, 3),
    "batch norm, eval": lambda: nn.BatchNorm1d(5).eval(),
    "lstm": lambda: nn.LSTM(8, 6, num_layers=2, dropout=0.3, batch_first=True),
    "lstm, eval": lambda: nn.LSTM(8, 6, num_layers=2, batch_first=True, bidirectional=True).eval(),
    "gru": lambda: nn.GRU(8, 6),
    "encoder layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "encoder layer, eval": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
    "dropout": lambda: nn.Dropout(0.4),
    "unfold": lambda: nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv2d(1, 3, 3, padding=1), nn.MaxPool2d(2), nn.GELU()),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(backend: ReferenceBackend, name: str) -> None:
    _replays_equal_eager(backend, _seeded(LAYERS[name]), torch.randn(2, 5, 8))


def test_batch_norm_in_training_moves_its_statistics(backend: ReferenceBackend) -> None:
    norm = nn.BatchNorm1d(5)
    state = dict(norm.named_buffers())
    before = norm.running_mean.clone()
    _replays_equal_eager(backend, norm, torch.randn(2, 5, 8), state=state)
    assert not torch.equal(norm.running_mean, before) and norm.num_batches_tracked == 3


def test_embedding_and_attention(backend: ReferenceBackend) -> None:
    table = _seeded(lambda: nn.Embedding(9, 8))

    def attend(ids: torch.Tensor) -> torch.Tensor:
        q = table(ids).unsqueeze(1)
        mask = torch.ones(5, 5, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, q, q, is_causal=True) + F.scaled_dot_product_attention(q, q, q, mask)

    _replays_equal_eager(backend, attend, torch.randint(0, 9, (2, 5)))


def _written(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[0, 1] = 3.0
    y[x > 1] = 0.5
    y[:, torch.tensor([0, 2])] += 1
    y.scatter_(1, x.argsort(1), 7.0)
    y.index_put_((torch.arange(2), torch.arange(2)), x[:, 0], accumulate=True)
    return y


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "indexed writes": _written,
    "host constants": lambda x: x * torch.tensor([2.0] * 8) + torch.as_tensor(1.5) + x.new_tensor([0.5]),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "out=": lambda x: torch.add(x, x, out=torch.empty(0)),
    "out= of a view": lambda x: torch.mul(x[0], 2, out=x.clone()[1]),
    "topk, sort, split, cat": lambda x: (x.topk(3), x.sort(-1), torch.cat(x.split(3, -1)[::-1], -1)),
    "views": lambda x: (x.t(), x[:, 1:4], x.unsqueeze(0).expand(3, 2, 8), x.detach(), x.view(-1)),
    "in-place views": lambda x: x.clone().t_().unsqueeze_(0).squeeze_(0),
    "complex": lambda x: (torch.fft.rfft(x).conj() * 2, torch.view_as_real(torch.fft.rfft(x))),
    "the default generator": lambda x: torch.rand(3, generator=torch.default_generator),
    "random": lambda x: (torch.rand(2), x + torch.randn_like(x), torch.randperm(5), x.clone().uniform_()),
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 3),
    "bernoulli": lambda x: F.dropout(x, 0.3) + torch.bernoulli(x.sigmoid()),
    "native dropout, not training": lambda x: torch.native_dropout(x, 0.5, False),
    "factorization": lambda x: torch.linalg.cholesky(x @ x.mT + 99 * torch.eye(2)),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "foreach": lambda x: torch._foreach_add([x, x[0]], 1.0),
    "foreach in place": lambda x: torch._foreach_mul_([x, x], 2.0),
    "plain values": lambda x: (x.shape[0], "a", None, x + 1),
    "no element": lambda x: (x[:0] + 1, x[:, :0].sum(1)),
    "half": lambda x: (x.half() @ x.half().t()).float(),
    "odd strides": lambda x: torch.xlogy(x.abs().t(), x.abs().t()[:, :1]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(backend: ReferenceBackend, name: str) -> None:
    _replays_equal_eager(backend, FUNCTIONS[name], torch.randn(2, 8))


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_autocast_is_recorded_and_a_replay_ignores_the_callers(backend: ReferenceBackend, where: str) -> None:
    linear = _seeded(lambda: nn.Linear(8, 8))
    x = torch.randn(2, 8)
    cast = torch.autocast("cpu", dtype=torch.bfloat16)

    def body() -> torch.Tensor:
        if where == "outside":
            return linear(linear(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return linear(linear(x))

    if where == "outside":
        with cast:
            graph, out = backend.capture(body)
    else:
        graph, out = backend.capture(body)
    x.mul_(2)
    graph.replay()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(out, linear(linear(x))) and out.dtype == torch.bfloat16
    plain, result = backend.capture(lambda: x @ x.t())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain.replay()
    assert torch.equal(result, x @ x.t())


def test_outputs_are_overwritten_by_the_next_replay(backend: ReferenceBackend) -> None:
    x = torch.ones(3)
    graph, out = backend.capture(lambda: x * 2)
    address = out.data_ptr()
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert out.tolist() == [2 * value] * 3 and out.data_ptr() == address


def test_returned_views_share_the_memory_of_inputs_and_outputs(backend: ReferenceBackend) -> None:
    x = torch.zeros(2, 3)

    def body() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x + 1
        return y, y[0], x.t()

    graph, (whole, row, turned) = backend.capture(body)
    assert turned.data_ptr() == x.data_ptr()
    assert row.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    x.copy_(torch.arange(6.0).view(2, 3))
    graph.replay()
    assert torch.equal(row, x[0] + 1) and torch.equal(turned, x.t())


def test_a_constant_is_written_afresh_by_every_replay(backend: ReferenceBackend) -> None:
    x = torch.ones(2)
    graph, out = backend.capture(lambda: torch.tensor([1.0, 2.0]).add_(x))
    for _ in range(2):
        graph.replay()
        assert out.tolist() == [2.0, 3.0]
    assert graph.constant_bytes == 8


def test_state_written_in_place_accumulates_over_replays(backend: ReferenceBackend) -> None:
    total, x = torch.zeros(2), torch.ones(2)
    graph, _ = backend.capture(lambda: total.add_(x))
    for _ in range(3):
        graph.replay()
    assert total.tolist() == [3.0, 3.0]


def test_nodes_count_device_work(backend: ReferenceBackend) -> None:
    x = torch.ones(2, 4)

    def body() -> torch.Tensor:
        y = torch.empty(4, 2).copy_(x.t())  # allocation and view: none; copy: one
        return y.view(-1) + torch.tensor(1.0)  # constant: one; sum: one

    graph, _ = backend.capture(body)
    assert (graph.nodes, graph.nbytes) == (3, 0)


def test_two_graphs_share_memory_and_are_right_when_alternated(backend: ReferenceBackend) -> None:
    x = torch.ones(64, 64)
    first, a = backend.capture(lambda: ((x * 2) @ x).relu().sum(0))
    size = backend.memory().pool_bytes
    second, b = backend.capture(lambda: ((x * 3) @ x).tanh().sum(1))
    grown = backend.memory().pool_bytes - size
    assert 0 < grown <= 512, "only the second output needed new memory"
    for value in (1.0, 0.01, -0.5):
        x.fill_(value)
        first.replay()
        second.replay()
        assert torch.equal(a, ((x * 2) @ x).relu().sum(0))
        assert torch.equal(b, ((x * 3) @ x).tanh().sum(1))
        second.replay()
        first.replay()
        assert torch.equal(a, ((x * 2) @ x).relu().sum(0))


def test_an_output_may_lie_where_an_earlier_graph_keeps_an_intermediate(backend: ReferenceBackend) -> None:
    """As in a CUDA pool: a replay of the first graph overwrites what the second returned."""
    x = torch.ones(32)
    first, _ = backend.capture(lambda: (x * 2).sum())
    second, out = backend.capture(lambda: x * 3)
    second.replay()
    assert torch.equal(out, x * 3)
    first.replay()
    assert out.isnan().all()


def test_memory_of_a_capture_is_used_again_within_it(backend: ReferenceBackend) -> None:
    x = torch.ones(1024)

    def body() -> torch.Tensor:
        y = x
        for _ in range(50):
            y = y * 1.5
        return y

    graph, out = backend.capture(body)
    assert backend.memory().pool_bytes == 2 * 4096
    graph.replay()
    expected = x
    for _ in range(50):
        expected = expected * 1.5
    assert torch.equal(out, expected)


def test_the_graph_keeps_no_output_alive_and_its_block_returns(backend: ReferenceBackend) -> None:
    x = torch.ones(16)
    graph, out = backend.capture(lambda: x * 2)
    ref, address = StorageWeakRef(out.untyped_storage()), out.data_ptr()
    storage = out.untyped_storage()
    assert torch._C._storage_Use_Count(storage._cdata) == 2
    del storage, out
    assert ref.expired()
    _, again = backend.capture(lambda: x * 3)
    assert again.data_ptr() == address
    graph.replay()
    assert torch.equal(again, x * 2), "the address is all that a graph knows"


def test_dead_scratch_is_poisoned_after_a_replay(backend: ReferenceBackend) -> None:
    x = torch.ones(16)
    kept: list[int] = []

    def body() -> torch.Tensor:
        y = x * 2
        kept.append(y.data_ptr())
        return y.sum()

    graph, out = backend.capture(body)
    graph.replay()
    raw = torch._C._construct_storage_from_data_pointer(kept[0], torch.device("cpu"), 64)
    assert torch.empty(0).set_(raw, 0, (16,), (1,)).isnan().all()
    assert out == 32


def test_without_poison_a_replay_writes_only_results() -> None:
    backend = ReferenceBackend()
    x = torch.ones(4)
    graph, out = backend.capture(lambda: torch.empty(4))
    out.fill_(3.0)
    graph.replay()
    assert out.tolist() == [3.0] * 4 and graph.nodes == 0
    backend.close()
    del x


def test_memory_that_was_freed_is_noticed(backend: ReferenceBackend) -> None:
    held = [torch.ones(4)]
    graph, _ = backend.capture(lambda: held[0] * 2)
    graph.replay()
    held.clear()
    with pytest.raises(RuntimeError, match="freed or moved"):
        graph.replay()


def test_memory_that_was_moved_is_noticed(backend: ReferenceBackend) -> None:
    x = torch.ones(4)
    graph, _ = backend.capture(lambda: x * 2)
    x.untyped_storage().resize_(1 << 20)
    with pytest.raises(RuntimeError, match="freed or moved"):
        graph.replay()


def test_release_and_close_leave_tensors_readable() -> None:
    backend = ReferenceBackend(poison=True)
    x = torch.ones(4)
    graph, out = backend.capture(lambda: x * 2)
    graph.replay()
    graph.release()
    graph.release()
    with pytest.raises(RuntimeError, match="released"):
        graph.replay()
    other, _ = backend.capture(lambda: x * 3)
    backend.close()
    backend.close()
    with pytest.raises(RuntimeError, match="released"):
        other.replay()
    assert out.tolist() == [2.0] * 4
    assert backend.memory().pool_bytes == 0


def test_a_changed_result_shape_is_an_error(backend: ReferenceBackend) -> None:
    @torch.library.custom_op("grape_test::liar", mutates_args=())
    def liar(value: torch.Tensor) -> torch.Tensor:
        return value[:2].clone()

    liar.register_fake(torch.empty_like)
    x = torch.ones(3)
    graph, _ = backend.capture(lambda: liar(x))
    with pytest.raises(RuntimeError, match=r"returned \(2,\), captured as \(3,\)"):
        graph.replay()


def test_bad_data_raises_at_replay(backend: ReferenceBackend) -> None:
    ids, table = torch.zeros(2, dtype=torch.int64), torch.ones(3, 4)
    graph, _ = backend.capture(lambda: F.embedding(ids, table))
    graph.replay()
    ids.fill_(3)
    with pytest.raises(IndexError):
        graph.replay()


def test_copy_and_placeholders(backend: ReferenceBackend) -> None:
    with torch.inference_mode():
        place = backend.empty_strided((2, 3), (1, 2), torch.float16)
    assert place.stride() == (1, 2) and not place.is_inference()
    other = backend.empty_strided((), (), torch.int64)
    backend.copy([place, other], [torch.ones(2, 3), torch.tensor(4)])
    backend.copy([], [])
    assert place.eq(1).all() and other == 4


def test_timer_and_kind(backend: ReferenceBackend) -> None:
    timer = backend.timer()
    timer.start()
    sum(range(10_000))
    timer.stop()
    backend.synchronize()
    assert 0 < timer.elapsed_ms() < 10_000
    assert (backend.kind, backend.device) == ("tape", torch.device("cpu"))


def test_random_state_round_trip(backend: ReferenceBackend) -> None:
    state = backend.rng_state()
    first = torch.rand(3)
    backend.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)


def test_a_small_gpt2_with_a_growing_mask_free_cache(backend: ReferenceBackend) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=31, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(config).eval()

    def forward(ids: torch.Tensor) -> Any:
        result = model(input_ids=ids, attention_mask=None, use_cache=True)
        return result.logits, [(layer.keys, layer.values) for layer in result.past_key_values.layers]

    ids = torch.randint(0, 31, (2, 6))
    try:
        _replays_equal_eager(backend, forward, ids)
    except CaptureFailed as failed:
        pytest.fail(f"{failed.code}: {failed}")


@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 20])
def test_memory_that_was_lent_must_stay_with_its_lender(backend: ReferenceBackend, nbytes: int) -> None:
    """Whoever described the memory may go; the slot may not."""
    slot = Slot(backend, nbytes)
    held = [torch.empty(0).set_(slot.storage(16), 0, (4,), (1,))]
    graph, result = backend.capture(lambda: held[0] * 2)
    held.clear()
    for value in (3.0, 5.0):
        torch.empty(0).set_(slot.storage(16), 0, (4,), (1,)).fill_(value)
        graph.replay()
        _same(result, torch.full((4,), 2 * value))
    slot.release()
    with pytest.raises(RuntimeError, match="freed or moved"):
        graph.replay()


def test_memory_of_a_lender_that_is_gone_may_be_somebody_elses(backend: ReferenceBackend) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.ones(4, dtype=numpy.float32)
    lent = torch.from_numpy(array)
    backend._lenders.add(lent)
    del lent
    mine = torch.from_numpy(array)
    graph, result = backend.capture(lambda: mine * 2)
    mine.fill_(3.0)
    graph.replay()
    _same(result, torch.full((4,), 6.0))
