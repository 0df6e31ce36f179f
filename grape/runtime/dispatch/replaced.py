"""True where functions of the person's stand in the place of torch's that Grape calls itself.

Grape reads sizes, copies memory and looks at modes with them; its function modes have torch look methods of tensors up
by name. The person's would be called where their code calls nothing, and what they do would be done to copies.
"""

from __future__ import annotations

import gc

import torch
from torch._C._dynamo.guards import dict_version

from ..state import TENSOR, is_persons

_torch = vars(torch)
_tensor = next(one for one in gc.get_referents(vars(torch.Tensor)) if type(one) is dict)
_NEVER_CALLED = frozenset({"compile", "load", "manual_seed", "save", "seed"})
"""People like to put others in the place of these, and Grape calls none of them."""


_called = [name for name, one in _torch.items() if callable(one) and name not in _NEVER_CALLED and not is_persons(one)]
_looked_at = 0
_found = False


def torch_is_replaced() -> bool:
    """Looks only where one of the two namespaces was written since."""
    global _looked_at, _found
    versions = dict_version(_tensor) + dict_version(_torch)  # they only grow
    if versions != _looked_at:
        _found = TENSOR.replaced() or any(map(is_persons, map(_torch.get, _called)))
        _looked_at = versions
    return _found
