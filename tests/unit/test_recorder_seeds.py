"""Seeds of attention lie on the CPU in an eager call and on the device in a capture; the trace is the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from grape.runtime.capture.lockstep import Diverged
from grape.tracing import Recorder

META, CPU = torch.device("meta"), torch.device("cpu")
AT = (None, None)


@pytest.fixture
def operators() -> Iterator[Any]:
    """Shaped as PyTorch's attention without `dropout_p`; `where` stands for whether a stream captures."""
    library = torch.library.Library("grape_seeds", "DEF")
    library.define("attend(Tensor query, Device where) -> (Tensor output, Tensor philox_seed, Tensor other)")
    library.define("attend_backward(Tensor grad, Tensor philox_seed) -> Tensor")

    def attend(query: torch.Tensor, where: torch.device) -> tuple[torch.Tensor, ...]:
        return query.clone(), torch.empty((), device=where), torch.empty((), device="meta")

    library.impl("attend", attend, "Meta")
    yield torch.ops.grape_seeds
    library._destroy()


def recorded(operators: Any, where: torch.device, elsewhere: bool = False, apart: bool = False) -> tuple[Any, ...]:
    recorder = Recorder(META)
    x = torch.empty(4, device="meta")
    function = operators.attend.default
    result = function(x, where)
    if elsewhere:
        result = (result[0], result[1], result[2].new_empty((), device="cpu"))
    # where the operator is told to run is no argument of the real one
    forward = recorder.after(recorder.before(function, (x,), {}), function, (x,), {}, result, AT, 0)
    given = (result[0], result[1])
    function = operators.attend_backward.default
    if apart:  # a backward that is traced by itself
        recorder = Recorder(META)
    backward = recorder.after(recorder.before(function, given, {}), function, given, {}, x.clone(), AT, 0)
    return forward, backward


@pytest.mark.parametrize("apart", [False, True])
def test_seeds_have_the_device_of_the_first_tensor(operators: Any, apart: bool) -> None:
    eager, captured = recorded(operators, CPU, apart=apart), recorded(operators, META, apart=apart)
    assert [one.signature() for one in eager] == [one.signature() for one in captured]
    assert [view.device for view in eager[0].outputs] == ["meta"] * 3
    assert [one.kind for one in eager] == [one.kind for one in captured] == ["compute", "compute"]


def test_other_results_keep_theirs_and_the_difference_is_told(operators: Any) -> None:
    eager, captured = recorded(operators, CPU, elsewhere=True), recorded(operators, META)
    assert eager[0].signature() != captured[0].signature()
    assert str(Diverged(eager[0], captured[0])) == ("grape_seeds.attend.default, result 2 device cpu and then meta")
