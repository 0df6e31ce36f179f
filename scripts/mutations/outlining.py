"""Loops whose bodies are regions: names that live in and out, how loops end, how runs are split."""

from __future__ import annotations

from .rows import rows_of

__all__ = ["ROWS"]

SYNTAX, VALUES = "grape.rewrite.outlining", "grape.outlining"
TESTS = ("tests/unit/test_rewrite_outlining.py", "tests/unit/test_outlining.py", "tests/property/test_cell_loops.py")
TRIALS = ("tests/unit/test_outlining_trial.py", "tests/property/test_cell_loops.py")

ROWS = (
    *rows_of(
        f"{SYNTAX}.names",
        TESTS,
        (
            "live-in: the value after the target",
            "        self.visit(node.value)\n        for target in node.targets:\n            self.visit(target)\n",
            "        for target in node.targets:\n            self.visit(target)\n        self.visit(node.value)\n",
        ),
        (
            "live-in: `+=` reads nothing",
            "        if isinstance(node.target, ast.Name):\n            self.read(node.target.id)\n",
            "",
        ),
        (
            "live-in: what one branch binds is bound",
            "self.sure = set.intersection(*ends) if ends else before",
            "self.sure = set().union(before, *ends)",
        ),
        (
            "live-in: a loop body runs at least once",
            "        self._maybe([node.target, *node.body], [])\n",
            "        self._maybe([node.target, *node.body])\n",
        ),
        (
            "live-in: no context swallows an exception",
            "        if all(_lets_pass(item.context_expr) for item in node.items):\n",
            "        if True:\n",
        ),
        (
            "live-out: a walrus in a comprehension binds nothing",
            "        for name in sorted(_walrus_targets([*rest, *results])):\n",
            "        for name in ():\n",
        ),
        (
            "live-in: nested functions read nothing",
            "                self.read(name)\n                self.nested.add(name)\n",
            "                pass\n",
        ),
    ),
    *rows_of(
        f"{SYNTAX}.scopes",
        TESTS,
        (
            "live-out: what the next iteration reads",
            "if self.mentioned[name] > inside[name] or name in names.first)",
            "if self.mentioned[name] > inside[name])",
        ),
        (
            "live-out: what stands behind the run",
            "if self.mentioned[name] > inside[name] or name in names.first)",
            "if name in names.first)",
        ),
        (
            "live-in: names bound on one way only",
            "        inputs |= {name: None for name in outputs if name not in names.sure}\n",
            "",
        ),
        (
            "live-in: names that may be unbound",
            "        if not set(inputs) <= set(bound):\n            return None\n",
            "",
        ),
        ("names: `locals()` and `exec` unseen", "            words & _SEES_NAMES\n            or ", "            "),
        (
            "names: of nested functions rebound in a run",
            "        return not self.shared.intersection(names_of([statement]).stores)\n",
            "        return True\n",
        ),
    ),
    *rows_of(
        f"{SYNTAX}.loops",
        TESTS,
        (
            "for: no rest behind the head",
            "plain.iter, plain.iter), head, [rest])",
            "plain.iter, plain.iter), head, [])",
        ),
        (
            "for: `else` of the person lost",
            '    rest.iter = call_of(LOOP, number, "rest", plain.iter)\n',
            '    rest.iter, rest.orelse = call_of(LOOP, number, "rest", plain.iter), []\n',
        ),
        ("while: `else` of the person lost", "test), [plain], plain.orelse), plain)", "test), [plain], []), plain)"),
        (
            "while: the rest runs though the condition was false",
            'call_of(LOOP, number, "left", test), [plain]',
            "ast.copy_location(ast.Constant(True), test), [plain]",
        ),
        (
            "an exception leaves names unbound",
            "        back = [_taken_back(number, name, at) for name in outputs]\n",
            "        back: list[ast.stmt] = []\n",
        ),
        (
            "an exception is shown at another line",
            "        raised = [_raised_at(number, line, at) for line in _lines(statements)]\n",
            "        raised: list[ast.stmt] = []\n",
        ),
    ),
    *rows_of(
        f"{VALUES}.loop",
        TESTS,
        (
            "for: an item taken twice",
            "        self._loop._left.put(self._iterator)\n",
            "        next(self._iterator, None)\n        self._loop._left.put(self._iterator)\n",
        ),
        (
            "loops inside each other share what is left",
            "return self._entries[get_ident()].pop()",
            "return self._entries[get_ident()].pop(0)",
        ),
    ),
    *rows_of(
        f"{VALUES}.run",
        TESTS,
        (
            "runs: a part takes what nobody gives",
            "        if self.source.local is None:\n            return True\n        bound = set(",
            "        return True\n        bound = set(",
        ),
        (
            "runs: never split at what is refused",
            "if culprits and len(culprits) < len(part.segment.statements) and self._splits < MAX_SPLITS:",
            "if False:",
        ),
    ),
    *rows_of(
        f"{VALUES}.run",
        ("tests/unit/test_hostile_training.py", "-k", "another_namespace"),
        (
            "runs: bound to the names of another cell",
            "        if self.parts and namespace is not self.namespace:",
            "        if False:",
        ),
    ),
    *rows_of(
        f"{VALUES}.parts",
        TESTS,
        (
            "parts: names bound on one way only",
            "dict(self.names.first) | {name: None for name in self.outputs if name not in self.names.sure}",
            "dict(self.names.first)",
        ),
        (
            "parts: captured runs touch the cell's names",
            "            or fresh is None\n"
            "            or any(fresh[name] is not value for name, value in arguments.items())\n",
            "",
        ),
        (
            "parts: eager runs do not touch the cell's names",
            "        self.run_eagerly(self.owner.namespace)\n        names = self.owner.namespace\n",
            "        return self._pure(**arguments)\n        names = self.owner.namespace\n",
        ),
        ("parts: tensors of the cell are constants", "    return type(value) is torch.Tensor\n", "    return False\n"),
    ),
    *rows_of(
        f"{SYNTAX}.loops",
        TESTS,
        (
            "live-out: what an iteration as written left lives on",
            "        if local is not None and local.temporaries:",
            "        if False:",
        ),
    ),
    *rows_of(
        f"{VALUES}.trial",
        TRIALS,
        ("trials: slower loops keep their graphs", "        if took <= would:\n", "        if True:\n"),
        ("trials: faster loops lose their graphs", "        if took <= would:\n", "        if False:\n"),
        (
            "trials: blocks with captures count",
            "(self._written or self._unserved == self._misses())",
            "True",
        ),
        (
            "trials: calls of other regions are in vain, too",
            "sum(region.unserved for region in regions if region is not None)",
            "sum(region.unserved for region in self._context.regions)",
        ),
        (
            "trials: what is outside of regions is recorded meanwhile",
            "        self._active.mute(comparing)\n",
            "",
        ),
        (
            "trials: the callables inside stay closed to Grape",
            "            self._active.free, self._closed = not written, written\n",
            "            self._active.free, self._closed = False, written\n",
        ),
        (
            "trials: a block goes on after its loop was left",
            "            self._left = -1\n            self._resume(written=False)\n",
            "            pass\n",
        ),
        (
            "trials: somebody waits in a region's call",
            "        held = not self._active.free and not self._closed\n",
            "        held = False\n",
        ),
        (
            "trials: runs stay as written",
            "            run.live = not written and not run.given_up and bool(run.regions)\n",
            "            run.live = False\n",
        ),
    ),
    *rows_of(
        f"{VALUES}.loop",
        TRIALS,
        ("trials: a break is not seen", "        self._loop._pause()  # after", "        pass  # after"),
    ),
    *rows_of(
        f"{VALUES}.run",
        ("tests/integration/test_loop_objects.py",),
        ("objects: not handed over", "        if part.hand_over(self.seen(values)):\n            return\n", ""),
    ),
    *rows_of(
        "grape.runtime.dispatch.active_region",
        ("tests/integration/test_which_is_active.py",),
        (
            "active: a function that is called once a cell takes it back",
            " or (once and inner.calls and inner.refused is None)",
            "",
        ),
    ),
)
