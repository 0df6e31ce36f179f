"""The fixes on a GPU: every case of the table with its data there, pinned batches, and a verification."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest
import torch

from grape.fixing.verification import verify
from grape.rewrite import Rewritten
from grape.rewrite.registry import fix
from tests.unit.rewrite_cases import finding, outcome, run
from tests.unit.test_rewrite_fixes import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code} {case.name}")
def test_fix(case: Case) -> None:
    results = []
    for source in (dedent(case.before), dedent(case.after)):
        with torch.device("cuda"):
            results.append(run(source, case.setup.replace('"cpu"', '"cuda"')))
    old, new = ({name: outcome(space[name]) for name in case.results} for space in results)
    assert old == new


PINNED = """\
loader = torch.utils.data.DataLoader(data, batch_size=8)
total = torch.zeros((), device="cuda")
for x in loader:
    x = x.to("cuda")
    total = total + net(x).sum()
"""


@pytest.mark.parametrize("prefetched", [True, False])
def test_pinned_batches(prefetched: bool) -> None:
    # A batch that the CPU looks at is no batch for prefetching.
    source = PINNED if prefetched else PINNED.replace("for x in loader:", "for x in loader:\n    mean = x.mean()")
    made = fix(source, finding("GR302", 4 if prefetched else 5))
    assert isinstance(made, Rewritten)
    torch.manual_seed(0)
    space: dict[str, Any] = {"torch": torch, "net": torch.nn.Linear(64, 64).cuda()}
    space["data"] = torch.utils.data.TensorDataset(torch.randn(256, 64))
    old, new = source.replace("for x in", "for (x,) in"), made.source.replace("for x in", "for (x,) in")
    assert "pin_memory=torch.cuda.is_available()" in new
    assert 'grape.prefetch(loader, "cuda")' in new if prefetched else "non_blocking=True" in new
    assert str(verify(old, new, space)) == "identical"


def test_verification_leaves_the_random_streams_of_the_gpu() -> None:
    space: dict[str, Any] = {"torch": torch}
    before = torch.cuda.get_rng_state()
    assert str(verify("z = torch.rand(9, device='cuda')", "z = torch.rand(9, device='cuda')", space)) == "identical"
    assert torch.equal(torch.cuda.get_rng_state(), before)
    changed = "torch.rand(1, device='cuda')\nz = torch.rand(9, device='cuda')"
    assert verify("z = torch.rand(9, device='cuda')", changed, space).why == "`z` differs"
