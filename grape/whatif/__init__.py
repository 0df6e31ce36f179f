"""What would make a call faster that keeps the GPU busy: each lever, measured on a copy.

Graphs leave out launches. Where kernels fill the time, other things help: fused kernels, half precision, TF32, another
memory format. They change the last bits or more, so Grape applies none; it measures and names the line to write.
"""

from .measure import what_if
from .table import WhatIf

__all__ = ["WhatIf", "what_if"]
