"""Branches of graphs: what waits for what, whose memory is held, and what ends them."""

from __future__ import annotations

from .rows import rows_of

__all__ = ["ROWS"]

TESTS = ("tests/unit/test_rules_gr502.py", "tests/property/test_branching.py")

ROWS = (
    *rows_of(
        "grape.model.overlap",
        TESTS,
        (
            "branches: a reader waits for nobody",
            "        found = {self._wrote[storage] for storage in given | changed if storage in self._wrote}\n",
            "        found = {self._wrote[storage] for storage in changed if storage in self._wrote}\n",
        ),
        (
            "branches: who writes does not wait for readers",
            "            found.update(self._read.get(storage, ()))\n",
            "            pass\n",
        ),
        (
            "branches: a lane knows more than it waited for",
            "if other != lane and known.get(other, -1) < needed:",
            "if other != lane and known.get(other, -1) < needed - 1:",
        ),
        (
            "branches: memory that crosses lanes is not held",
            "                if self.lane[home] != lane:\n",
            "                if self.lane[home] > 99:\n",
        ),
        (
            "branches: memory is given back before others are done with it",
            "all(known.get(one, -1) >= last for one, last in touches if one != lane)",
            "any(known.get(one, -1) >= last for one, last in touches)",
        ),
        (
            "branches: a constant is no work",
            'op.kind == "random" or (op.kind == "view" and bool(op.born))',
            'op.kind == "random"',
        ),
        (
            "branches: operators of others are trusted to tell what they write",
            "is_alone=op.ordinal in alone or _is_foreign(op)",
            "is_alone=op.ordinal in alone",
        ),
        (
            "branches: memory may grow in another lane",
            "        if op.written and _grows(op):\n",
            "        if False:\n",
        ),
        (
            "branches: a call that writes has some",
            "        if op.kind not in _WORKS | _IDLE or not born.issuperset(op.written):\n",
            "        if op.kind not in _WORKS | _IDLE:\n",
        ),
        (
            "branches: gradients may be recorded",
            "    if trace.needs_grad or trace.cut:\n",
            "    if trace.cut:\n",
        ),
        (
            "branches: what is written to a slot waits for nobody",
            "            needs.update(last for last in self._last if last is not None)\n",
            "            pass\n",
        ),
        (
            "branches: nobody waits for what is written to a slot",
            "        if is_alone:\n            self._fence = op.ordinal\n",
            "",
        ),
    ),
)
