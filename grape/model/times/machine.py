"""Constants of one machine, from which costs are predicted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCosts:
    """Constants of one machine. The defaults were measured on one H200; `grape.profiling.calibrate` measures others.

    `node_gap_us` is what lies between two nodes of a replay, beyond their own time: GPT-2's step has 269 kernels of
    0.72 ms in all and replays in 0.946 ms. `device_copy_gb_per_s` is the payload rate of fused placeholder copies (26
    tensors of GPT-2's step, 91 MiB in 0.08 ms and 175 MiB in 0.14 ms). `capture_ms_per_node` comes
    from GPT-2's step of 312 nodes (40 ms). `operator_us` is what it takes the CPU to issue one small operator: what the
    CPU does for a replay is predicted as a multiple of it.
    `host_copy_gb_per_s` is None because no such rate was measured; without it a copy from the CPU is priced from the
    timeline alone.
    """

    node_gap_us: float = 0.84
    device_copy_gb_per_s: float = 1250.0
    capture_ms_per_node: float = 40.0 / 312
    operator_us: float = 6.0
    host_copy_gb_per_s: float | None = None
    source: str = "H200, driver 580.159, torch 2.11.0+cu130"


H200 = MachineCosts()
