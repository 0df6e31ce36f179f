"""Lists of neighbours that are padded, and the rewrite for it."""

from __future__ import annotations

from .rows import rows_of

__all__ = ["ROWS"]

PADS = ("tests/unit/test_edges.py",)
REWRITES = ("tests/unit/test_padded_edges.py",)

ROWS = (
    *rows_of(
        "grape.runtime.edges",
        PADS,
        (
            "edges: padded with a pair that interacts",
            "    if not bool(known[farthest] > cutoff):\n",
            "    if False:\n",
        ),
        (
            "edges: an atom is a pair with itself",
            "distances.detach().masked_fill(torch.eye(atoms, dtype=torch.bool, device=distances.device), -1)",
            "distances.detach()",
        ),
        (
            "edges: a distance that is none counts",
            "    known = torch.where(known.isfinite(), known, -1).flatten()\n",
            "    known = known.flatten()\n",
        ),
    ),
    *rows_of(
        "grape.rewrite.padded_edges",
        REWRITES,
        (
            "padded: whoever looks at the length",
            '        return isinstance(call, cst.Call) and call_name(call).rpartition(".")[2] not in _COUNTS\n',
            "        return True\n",
        ),
        (
            "padded: distances that are bound anew",
            "    if between is None or names & set().union(*map(code.stored, between)):\n",
            "    if between is None:\n",
        ),
        (
            "padded: distances that are written in place",
            "        if changed is not None:\n",
            "        if False:\n",
        ),
    ),
    *rows_of(
        "grape.fixing.offers",
        REWRITES,
        (
            "offers: what nobody compared",
            '    if lengthened and checked.result == "not verified":\n',
            "    if False:\n",
        ),
        (
            "offers: what may not run",
            "    if why is not None and made.tolerance is not None:\n",
            "    if False:\n",
        ),
    ),
)
