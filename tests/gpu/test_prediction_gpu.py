"""The constants of the machine: measured on a device, plausible, and nothing is left behind."""

from __future__ import annotations

import torch

import grape
from grape.profiling import machine_costs
from grape.profiling.calibration import CudaBench, calibrate

DEVICE = torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")


def test_calibration_is_plausible_and_leaves_nothing() -> None:
    torch.zeros(1, device=DEVICE)
    state, allocated = torch.cuda.get_rng_state(), torch.cuda.memory_allocated()
    costs = calibrate(CudaBench(DEVICE))
    torch.cuda.synchronize()
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.cuda.memory_allocated() <= allocated + 2**20
    assert costs.source.startswith(torch.cuda.get_device_name())
    assert 0.0 <= costs.node_gap_us < 5.0
    assert 50.0 < costs.device_copy_gb_per_s < 20_000.0
    assert costs.host_copy_gb_per_s is not None and 0.5 < costs.host_copy_gb_per_s < 500.0
    assert torch.ones(8, device=DEVICE).add(1).sum().item() == 16.0


def test_it_is_measured_once() -> None:
    assert machine_costs(DEVICE) is machine_costs(DEVICE)


@torch.inference_mode()
def test_a_profiled_region_is_foretold() -> None:
    net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(40))).to(DEVICE).eval()
    x = torch.zeros(8, 256, device=DEVICE)
    with grape.session(profile=True) as session:
        for _ in range(40):
            y = net(x)
    torch.cuda.synchronize()
    assert y.shape == (8, 256) and session.report is not None
    (region,) = session.report.to_dict()["regions"]
    assert region["outcome"] == "observed" and 0 < region["predicted_ms"] < region["before_ms"]["median"]
