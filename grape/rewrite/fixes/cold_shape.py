"""GR203: attention without cuDNN, whose kernels need a plan for each length.

    out = model.generate(**inputs)        with torch.nn.attention.sdpa_kernel([...]):
                                              out = model.generate(**inputs)

The whole statement runs so, and nothing else. The other kernels may give other last bits.
"""

from __future__ import annotations

import libcst as cst

from ...model import Finding
from ..code import Code, descendants, importing, under
from ..result import Declined

_KERNELS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
_CHOSEN = frozenset(
    {"sdpa_kernel", "sdp_kernel", "enable_cudnn_sdp", "enable_flash_sdp", "enable_math_sdp", "enable_mem_efficient_sdp"}
)


def fix(code: Code, finding: Finding) -> str | Declined:
    assert finding.at is not None
    line = finding.at.line
    if "cudnn_attention" not in str(dict(finding.evidence).get("operator")):
        return Declined(why="which shapes may be padded cannot be told from the source", line=line)
    if _CHOSEN & code.all_names():
        return Declined(why="the source chooses its attention kernels itself", line=line)
    statement = _whole(code, line)
    if statement is None:
        return Declined(why="no statement stands on the line", line=line)
    if any(isinstance(node, (cst.Yield, cst.Await)) for node in descendants(statement)):
        return Declined(why="it waits, and other code runs meanwhile", line=line)
    kernels = ", ".join(f"torch.nn.attention.SDPBackend.{name}" for name in _KERNELS)
    wrapped = under(f"torch.nn.attention.sdpa_kernel([{kernels}])")
    return importing(code, code.replaced({statement: wrapped}))


def _whole(code: Code, line: int) -> cst.BaseStatement | None:
    """The outermost statement around the line within its function, or within the cell."""
    found: cst.BaseStatement | None = next(iter(code.on_line(line, cst.SimpleStatementLine)), None)
    for kind in (cst.For, cst.While, cst.With, cst.If):
        found = found or next(iter(code.on_line(line, kind)), None)
    for above in code.ancestors(found) if found is not None else ():
        if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
            break
        if isinstance(above, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            found = above
    return found
