"""Captures one call of a region and proves the graph right before it is used.

`attempt.py` has the order of things; `judging.py` what a trace may hold; `snapshot.py` what the region writes;
`in_step.py` the second run, which is captured; `lowered.py` control flow that is left to the device;
`provenance.py` where results come from; `redirect.py` which operators write into slots; `lockstep.py` whether both runs
issue the same operators; `verification.py` and `compare.py` the replay that is compared.
"""

from .attempt import capture_call
from .lowered import is_left_to_device
from .proof.judging import judge
from .request import Request

__all__ = ["Request", "capture_call", "is_left_to_device", "judge"]
