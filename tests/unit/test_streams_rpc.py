"""Calls of other processes come on threads whose operators no stream sees: beside an agent nothing is deferred."""

from __future__ import annotations

import pytest
import torch.distributed.rpc

from tests.processes import lines_of
from tests.property.stream_programs import needs_compiler

pytestmark = [
    needs_compiler,
    pytest.mark.skipif(not torch.distributed.rpc.is_available(), reason="torch without RPC"),
]

PROGRAM = """
    import os, tempfile
    import torch
    from grape.streams import Settings, Stream, open_stream, session

    session._automatic = lambda: "{device}"
    settings = Settings(shortest=8, hot=2, settled=0, patience=0, price=0, doubt=0)

    def start(name):
        from torch.distributed import rpc
        options = rpc.TensorPipeRpcBackendOptions(init_method="file://" + tempfile.mktemp())
        rpc.init_rpc(name, rank=0, world_size=1, rpc_backend_options=options)

    def loop(starts):
        left, a = [], torch.ones(16)
        for i in range(60):
            if i == 30 and starts:
                start("w")
            y = (a * 0.5 + i % 3).tanh()
            if i < 30:
                r = y + 1
            else:
                r = torch.distributed.rpc.rpc_sync("w", torch.add, args=(y, 1))
            a = (a * 0.5 + r * 0.1).clamp(-2, 2)
            left.append(a)
        torch.distributed.rpc.shutdown()
        return left
"""


@pytest.mark.parametrize("device", ["cpu", "pretended"])
def test_from_the_start_of_an_agent_on_a_stream_defers_nothing(device: str) -> None:
    code = """
    with open_stream(settings) as stream:
        seen = loop(True)
    evidence = stream.evidence()
    print(evidence.matched > 100, evidence.written["beside torch.distributed.rpc"] > 100)
    with open_stream(settings) as stream:
        again = loop(True)
    print(stream.evidence().written["beside torch.distributed.rpc"] > 100)
    plain = loop(True)
    print(all(map(torch.equal, plain, seen)), all(map(torch.equal, plain, again)))
    """
    assert lines_of(PROGRAM.format(device=device) + code) == ["True True", "True", "True True"]


def test_no_stream_opens_or_goes_on_beside_an_agent() -> None:
    code = """
    stream = open_stream(settings)
    stream.pause()
    start("w")
    print("torch.distributed.rpc" in stream.resume().reason)
    stream.close()
    print("torch.distributed.rpc" in open_stream(settings).reason)
    torch.distributed.rpc.shutdown()
    stream = open_stream(settings)
    print(isinstance(stream, Stream))
    stream.close()
    """
    assert lines_of(PROGRAM.format(device="cpu") + code) == ["True", "True", "True"]
