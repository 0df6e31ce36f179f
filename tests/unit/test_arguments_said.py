"""What a person is told of an argument that no guard can compare: what it is, by a name that they gave it."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from grape.advisor.rules.gr4xx import gr405
from grape.model import Reason, Refused
from grape.runtime.capture.proof.compare import documented
from grape.runtime.guarding.structure import Unsupported, flatten
from tests.unit.trace_builder import cell, region


class Marked(torch.Tensor):
    pass


class Ticking:
    def __next__(self) -> int:
        return 1


SAID: dict[str, tuple[Callable[[], object], str]] = {
    "an array": (lambda: np.zeros(3), "is a `numpy.ndarray`, which no guard can compare"),
    "a number of numpy": (lambda: np.float32(1), "is a `numpy.float32`, which no guard can compare"),
    "a generator": (lambda: np.random.RandomState(0), "RandomState`, which no guard can compare"),
    "a set": (lambda: {1}, "is a `set`, which no guard can compare"),
    "an iterator": (lambda: iter([1]), "is a `list_iterator`, which no guard can compare"),
    "a default dict": (lambda: collections.defaultdict(int), "is a `collections.defaultdict`, which no guard"),
    "an object of the person's": (Ticking, "is a `Ticking`, which no guard can compare"),
    "a sparse tensor": (lambda: torch.eye(2).to_sparse(), "is a sparse tensor (`torch.sparse_coo`)"),
    "a subclass": (lambda: torch.zeros(2).as_subclass(Marked), "is a `Marked`, a subclass of `torch.Tensor`"),
    "a conjugated view": (lambda: torch.ones(2, dtype=torch.cfloat).conj(), "is a conjugated or negated view"),
}


@pytest.mark.parametrize("case", SAID)
def test_what_it_is(case: str) -> None:
    make, said = SAID[case]
    with pytest.raises(Unsupported) as raised:
        flatten(((make(),), {}), "args")
    assert str(raised.value).startswith("`args[0][0]` ") and said in str(raised.value)
    assert "data nor" not in str(raised.value)


class Twice(torch.autograd.Function):
    said: ClassVar[list[str]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        with pytest.raises(Unsupported) as raised:
            flatten((gradients, {}), "args")
        Twice.said.append(str(raised.value))
        return gradients[0] * 2


def test_a_gradient_that_stands_for_many() -> None:
    x = torch.ones(2, requires_grad=True)
    torch.autograd.grad(Twice.apply(x), x, torch.eye(2), is_grads_batched=True)  # type: ignore[no-untyped-call]
    assert Twice.said == ["`args[0][0]` stands for many tensors (`is_grads_batched=True`)"]


@pytest.mark.parametrize(
    ("name", "source", "path", "said"),
    [
        ("Pool.draw", "for i in range(9):\n    b = pool.draw(8)\n", "args[0][0].rng", "`self.rng` is"),
        ("step", "for s in states:\n    a = step(s)\n", "args[0][0]", "`s` is"),
        ("loop at line 1", "for s in states:\n    a = s + 1\n", "args[1]['s']", "`s` is"),
        ("step", "for s in states:\n    a = step(s)\n", "result[0][1]", "`[1]` of what it returns is"),
    ],
)
def test_the_finding_has_the_name_that_the_person_gave_it(name: str, source: str, path: str, said: str) -> None:
    what = Unsupported(path, np.zeros(3))
    refused = Refused.because(Reason.ARGUMENTS, what=what)
    (finding,) = gr405.check(cell(region(name, outcome="refused", refused=refused), source=source))
    assert finding.message == f"`{name}` stays eager: {said} a `numpy.ndarray`, which no guard can compare"


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (
            Refused.because(Reason.REPLAY_DIFFERS, where="`result[0]`", because=documented(("aten.cumsum.default",))),
            "a replay gives what it returns other bits than eager code does; aten.cumsum.default is documented as "
            "non-deterministic on a GPU (see --tolerance)",
        ),
        (
            Refused.because(Reason.REPLAY_DIFFERS, where="a tensor that it writes", because=documented(("a", "b"))),
            "a replay gives a tensor that it writes other bits than eager code does; a and b are documented as "
            "non-deterministic on a GPU (see --tolerance)",
        ),
        (
            Refused.because(Reason.REPLAY_LOOKS, where="`result[0].logits`", what="strides"),
            "in a replay `logits` of what it returns would differ from the eager one in its strides",
        ),
    ],
)
def test_what_a_replay_got_wrong_is_named_as_well(refused: Refused, said: str) -> None:
    (finding,) = gr405.check(cell(region("step", outcome="refused", refused=refused), source="a = step(s)\n"))
    assert finding.message == f"`step` stays eager: {said}"


def test_nothing_is_said_of_operators_that_repeat_themselves() -> None:
    assert documented(()) == ""
