"""Gradients as state, their homes, and results whose graph was consumed."""

from __future__ import annotations

from .rows import rows_of

__all__ = ["ROWS"]

TRAINING = "grape.runtime.training"
TESTS = (
    "tests/unit/test_training_gradients.py",
    "tests/unit/test_training.py",
    "tests/unit/test_hostile_training.py",
)

ROWS = (
    *rows_of(
        "grape.runtime.capture.proof.judging",
        ("tests/unit/test_result_looks.py",),
        ("results: a gradient that a call sets", "    if graded is not None:\n", "    if False:\n"),
    ),
    *rows_of(
        "grape.runtime.training.results",
        ("tests/unit/test_result_looks.py",),
        ("results: a frozen parameter has none", " and not isinstance(tensor, torch.nn.Parameter)", ""),
    ),
    *rows_of(
        "grape.runtime.capture.attempt",
        ("tests/unit/test_failed_captures.py",),
        (
            "failed captures: memory",
            "            self.snapshot.settle()\n        self.backend",
            "            pass\n        self.backend",
        ),
        ("failed captures: objects", "            self.kept.put_back()\n", "            pass\n"),
        ("failed captures: version counters", "        self.versions.restore()\n", ""),
    ),
    *rows_of(
        "grape.runtime.replaying.entry",
        ("tests/unit/test_version_counters.py",),
        (
            "versions: those of what a replay writes",
            "            set_versions(counted, versions)\n",
            "            pass\n",
        ),
    ),
    *rows_of(
        "grape.runtime.guarding.environment",
        ("tests/unit/test_global_hooks.py",),
        ("hooks of all modules not seen by a replay", "        _has_hooks_of_all_modules,\n", ""),
    ),
    *rows_of(
        "grape.runtime.capture.proof.judging",
        ("tests/unit/test_judging.py",),
        (
            "a tensor of the CPU that is written",
            "    return _writes_on_the_host(trace) or value_guards\n",
            "    return value_guards\n",
        ),
    ),
    *rows_of(
        f"{TRAINING}.gradients",
        TESTS,
        (
            "gradients: which leaves have one not compared",
            "return tuple([gradient is not None for gradient in gradients]) == self.present",
            "return True",
        ),
        (
            "gradients: one where none was not noticed",
            "return gradients.count(None) == len(gradients)",
            "return True",
        ),
        (
            "gradients: layout of those read not compared",
            "return all(home.fits(leaf.grad) for leaf, home in self.read if leaf.grad is not None)",
            "return True",
        ),
        (
            "gradients: a made one overwrites one that is held",
            "return any(home.occupied(by_its_leaf=leaf.grad is home.tensor) for leaf, home, _ in self.made)",
            "return False",
        ),
        (
            "gradients: a held one moves to its home",
            "if not _at_home(leaf, home) and (not alone(_of(leaf)) or home.occupied(by_its_leaf=False)):",
            "if False:",
        ),
        ("gradients: not brought home", "        if to_copy:\n", "        if False:\n"),
        ("gradients: not dropped", "        for leaf in self.dropped:\n", "        for leaf in ():\n"),
        (
            "gradients: `.grad` not set after a replay",
            "            if leaf.grad is not tensor:\n",
            "            if False:\n",
        ),
        ("gradients: versions not moved", "        if written:\n", "        if False:\n"),
        ("gradients: adopted though in use elsewhere", " or not alone(gradient):", ":"),
        ("gradients: adopted though elements overlap", "overlaps(gradient) or ", ""),
        ("gradients: one with a graph is made", "            if gradient.requires_grad:\n", "            if False:\n"),
        (
            "gradients: replaced though in use elsewhere",
            "elif home.occupied(by_its_leaf=False) or not home.fits(gradient):",
            "elif False:",
        ),
        (
            "gradients: the captured run finds those of the eager one",
            "            self._entered.append(before)\n            leaf.grad = before\n",
            "            self._entered.append(before)\n",
        ),
        (
            "gradients: those of the captured run stay",
            "            leaf.grad = after\n",
            "            pass\n",
        ),
        (
            "gradients: two runs not compared",
            'if (left is None) != (kind == "none") or (left is entered) != (kind == "same" or entered is left is None)',
            "if False",
        ),
        ("gradients: one from elsewhere is set", "            if storage not in born:\n", "            if False:\n"),
        ("gradients: one is returned", "            if storage in returned:\n", "            if False:\n"),
        ("gradients: two share memory", "            if storage in shared:\n", "            if False:\n"),
    ),
    *rows_of(
        f"{TRAINING}.homes",
        TESTS,
        (
            "homes: uses of the memory not counted",
            "            _use_count(self.cdata) > uses\n            or ",
            "            ",
        ),
        ("homes: holders of the storage not counted", "            or getrefcount(self._object) > objects\n", ""),
        ("homes: holders of the gradient not counted", "            or getrefcount(self.tensor) > references\n", ""),
        (
            "homes: uses by autograd not counted",
            "            or _tensor_use_count(self.tensor) > 1 + by_its_leaf\n",
            "",
        ),
        ("homes: weak references to the last gradient", " or getweakrefcount(tensor)\n", "\n"),
        ("homes: attributes of the last gradient", " or tensor.__dict__", ""),
        ("homes: a gradient that got a gradient flag", " or tensor.requires_grad or", " or"),
        (
            "homes: two leaves of one gradient",
            "    if not SUPPORTED or _tensor_use_count(tensor) > 2:\n        return False\n",
            "",
        ),
        (
            "homes: views of a gradient",
            "    return all(mine <= least for mine, least in zip(_uses(tensor), _uses_alone(), strict=True))",
            "    return True",
        ),
    ),
    *rows_of(
        f"{TRAINING}.consumed",
        TESTS,
        (
            "results: graphs that can be gone through taken for consumed",
            "        pending += [following for following, _ in node.next_functions]\n    return False\n",
            "        pending += [following for following, _ in node.next_functions]\n    return True\n",
        ),
        (
            "results: a second backward passes",
            ".apply(tensor, _freed())",
            ".apply(tensor, torch.ones((), requires_grad=True))",
        ),
        (
            "results: nodes of the eager run kept",
            "        if is_consumed(tensor):\n            seal(tensor)\n",
            "        pass\n",
        ),
    ),
    *rows_of(
        f"{TRAINING}.results",
        TESTS,
        (
            "results: with a graph of their own replayed",
            "id(tensor) not in given and has_graph(tensor) and not is_consumed(tensor)",
            "False",
        ),
        (
            "results: with a gradient of their own replayed",
            "    if any(_has_gradient(tensor) for tensor in results):\n",
            "    if False:\n",
        ),
        (
            "results: under autocast from outside replayed",
            '    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):\n',
            "    if False:\n",
        ),
        (
            "results: of arguments with gradients replayed",
            "    if any(tensor.requires_grad for tensor in arguments):\n",
            "    if False:\n",
        ),
    ),
    *rows_of(
        "grape.runtime.replaying.entry",
        TESTS,
        (
            "gradients: held ones not looked at before a replay",
            "            if gradients.blocked():\n",
            "            if False:\n",
        ),
        ("gradients: layout not looked at before a replay", " or not gradients.fits():", ":"),
    ),
)
