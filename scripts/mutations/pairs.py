"""Pairs: what a forward has saved until its backward, parts of gradients, and what a backward checks."""

from __future__ import annotations

from .rows import rows_of

__all__ = ["ROWS"]

TRAINING = "grape.runtime.training"
TESTS = ("tests/unit/test_training_pairs.py",)

ROWS = (
    *rows_of(
        f"{TRAINING}.pair",
        TESTS,
        (
            "pairs: a forward overwrites what a backward has yet to read",
            "return not self.saved.anything or not any(call.outstanding for call in self._calls)",
            "return True",
        ),
        (
            "pairs: a consumed graph holds its pair",
            "return self._alive is None or not self._alive.expired()",
            "return True",
        ),
        (
            "pairs: versions of parameters not checked",
            "kept += [one.tensor for one in saved.outside]",
            "kept += [one.tensor.data for one in saved.outside]",
        ),
        (
            "pairs: versions of results not checked",
            "kept += [outputs[i] for i in saved.results]",
            "kept += [outputs[i].data for i in saved.results]",
        ),
        (
            "pairs: an argument that was changed unseen not read again",
            "if not moved_away and index not in self.placeholders.host:",
            "if False:",
        ),
        (
            "pairs: a parameter that got other memory read where it was",
            "if one.follows and one.there.data_ptr() != one.tensor.data_ptr()",
            "if False",
        ),
        (
            "pairs: released before a backward that is to come",
            "waiting = [call for call in self._calls if call.outstanding]",
            "waiting: list[PairedCall] = []",
        ),
        (
            "pairs: two gradients in one memory",
            "self.backend.copy(made, [one for one in narrow if one is not None])",
            "copies = narrow",
        ),
    ),
    *rows_of(
        f"{TRAINING}.recorded",
        TESTS,
        (
            "pairs: parts of a gradient added up in the graph",
            "for node, position in feeding if len(feeding) > 1 else ():",
            "for node, position in ():",
        ),
        (
            "pairs: a backward in Python goes into a graph",
            "if isinstance(node, torch.autograd.function.BackwardCFunction):",
            "if False:",
        ),
    ),
    *rows_of(
        f"{TRAINING}.again",
        TESTS,
        (
            "pairs: a backward under autocast is a graph's",
            "if torch.is_autocast_enabled(self.backend.device.type):",
            "if False:",
        ),
        (
            "pairs: another random state when the forward runs again",
            "if call.state is not None:",
            "if False:",
        ),
    ),
    *rows_of(
        "grape.runtime.regions.region_state",
        TESTS,
        (
            "pairs: cells get some",
            "return context.pairs and self.root_is_module",
            "return self.root_is_module",
        ),
    ),
    *rows_of(
        f"{TRAINING}.pair_entry",
        TESTS,
        (
            "pairs: code that differentiates again is served",
            "        if self.pair.fits and will_differentiate_again():\n",
            "        if False:\n",
        ),
    ),
)
