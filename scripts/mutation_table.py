"""Breaks each guard and check of the runtime in turn and shows which tests notice.

    python scripts/mutation_table.py [NAME ...]

Each row runs the tests named beside it in a process of its own, with one check made blind; they must fail. Rows that
no test notices are printed as SURVIVED, and the exit status is 1. Names choose rows; without any, all run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
GUARDS = "tests/unit/test_runtime_guards.py"
ARGUMENTS = "tests/unit/test_runtime_arguments.py"
EFFECTS = "tests/unit/test_runtime_effects.py"


class Row(NamedTuple):
    """`apply` breaks something in the process of the tests; `tests` are pytest's arguments."""

    what: str
    apply: Callable[[], None]
    tests: tuple[str, ...]


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def guards_hold() -> None:
    from grape.runtime.guards import GuardSet

    GuardSet.holds = _always(True)  # type: ignore[method-assign]


def _without(method: str) -> Callable[[], None]:
    """A kind of state that the walk passes by."""

    def apply() -> None:
        from grape.runtime.guards import GuardSet

        setattr(GuardSet, method, _always(None))

    return apply


def tensors_stay() -> None:
    from grape.runtime.guards import GuardSet

    GuardSet._locate = _always(())  # type: ignore[method-assign]


def hooks_are_unseen() -> None:
    from grape.runtime import guards

    guards.RemovableHandle = type("Handle", (), {"next_id": 0})  # type: ignore[misc, assignment]


def code_is_constant() -> None:
    from grape.runtime import guards

    guards.written_code = _always(None)  # type: ignore[assignment]
    guards._names = _always((frozenset(), frozenset()))


def zeros_are_equal() -> None:
    from grape.runtime import guards

    original = guards._equal
    guards._equal = lambda one, other: original(one, other) or (type(one) is type(other) is float and one == other)


def environment_is_constant() -> None:
    from grape.runtime import region

    region.environment = _always(())


def modes_are_unseen() -> None:
    from grape.runtime import capture

    capture.foreign_modes = _always(None)


def prologue_is_constant() -> None:
    from grape.runtime import entry

    entry._same = _always(True)


def reads_after_writes() -> None:
    from grape.runtime import prologue

    original = prologue.slice_of

    def blind(ops: Any, ordinal: int, born: Any) -> Any:
        everything = {number for op in ops for number in (*op.written, *op.born)}
        return original(ops, ordinal, everything)

    from grape.runtime import region

    prologue.slice_of = region.slice_of = blind


def results_in_place() -> None:
    from grape.runtime.outputs import Outputs

    Outputs.hand_out = lambda self: list(self._made)  # type: ignore[method-assign]


def results_never_shared() -> None:
    from grape.runtime.outputs import Outputs

    original = Outputs.hand_out
    Outputs.hand_out = lambda self: [t.clone() for t in original(self)]  # type: ignore[method-assign]


def aliases_unseen_by_the_probe() -> None:
    from grape.runtime.probe import _Writer

    _Writer.aliasing = _always(None)  # type: ignore[method-assign]


def tensors_unseen_by_the_probe() -> None:
    from grape.runtime.probe import _Writer

    def leaf(self: Any, number: int, expression: str) -> None:
        if number not in self.leaves:
            self.leaves[number] = self.local()
            self.lines.append(f" {self.leaves[number]} = {expression}")

    _Writer.leaf = leaf  # type: ignore[method-assign]


def values_unseen_by_the_probe() -> None:
    from grape.runtime.probe import _Writer

    _Writer.static = _always(None)  # type: ignore[method-assign]


def keys_untyped() -> None:
    from grape.runtime import probe, structure

    structure.typed = probe.typed = lambda names: tuple(names)


def outside_overlaps() -> None:
    from grape.runtime.entry import Entry

    Entry._overlaps = _always(False)  # type: ignore[method-assign]


def lockstep_is_blind() -> None:
    from grape.runtime import capture, lockstep

    class Agreeable(lockstep.Lockstep):
        def _step(self, func: Any, args: Any, kwargs: Any) -> Any:
            before = self._recorder.before(func, args, kwargs)
            result = func(*args, **kwargs)
            self._recorder.after(before, func, args, kwargs, result, (None, None), 0)
            return result

        def finish(self) -> Any:
            return self._recorder.finish()

    capture.Lockstep = Agreeable  # type: ignore[misc]


def verification_is_blind() -> None:
    from grape.runtime import capture

    capture.first_mismatch = _always(None)
    capture._same_state = _always(True)
    lockstep_is_blind()


def probe_serves_stale_shapes() -> None:
    from grape.runtime import region

    original = region.compile_probe
    first: list[Any] = []

    def compile_probe(layout: Any) -> Any:
        first.append(original(layout))
        return first[0]

    region.compile_probe = compile_probe


def written_back_never() -> None:
    from grape.runtime.entry import Entry

    Entry._copy_back = _always(None)  # type: ignore[method-assign]


def inputs_never_copied() -> None:
    from grape.runtime.entry import Entry

    Entry._copy_in = _always(None)  # type: ignore[method-assign]


def bound_without_a_look() -> None:
    from grape.runtime import entry

    original = entry.Entry.serve

    def serve(self: Any, leaves: Any, containers: Any) -> Any:
        self.placeholders.bound = []
        return original(self, leaves, containers)

    entry.Entry.serve = serve  # type: ignore[method-assign]


def random_state_stays() -> None:
    from grape.runtime.backends.tape import TapeBackend

    TapeBackend.set_rng_state = _always(None)  # type: ignore[method-assign]


def state_not_restored() -> None:
    from grape.runtime.capture import _Capture

    original = _Capture.keep_eager_state

    def keep(self: Any) -> None:
        original(self)
        self.in_place, self.in_place_before, self.in_place_after = [], [], []

    _Capture.keep_eager_state = keep  # type: ignore[method-assign]


def only_the_view_restored() -> None:
    from grape.runtime import capture

    capture.whole = capture._typed = lambda tensor: tensor.detach()


def effects_unseen() -> None:
    from grape.runtime import capture, region

    capture.effect_of = region.effect_of = _always(None)


def effects_seen_once() -> None:
    from grape.runtime.capture import _Capture

    _Capture.check_effects = _always(None)  # type: ignore[method-assign]


def arguments_without_state() -> None:
    from grape.runtime import capture

    capture.stateful = _always(())


def containers_unchanged() -> None:
    from grape.runtime.recipe import _Builder

    _Builder.change = _always(None)  # type: ignore[method-assign]


def outside_results_copied() -> None:
    from grape.runtime.guards import GuardSet

    GuardSet.owns = _always(False)  # type: ignore[method-assign]


def versions_stay() -> None:
    import torch

    torch.autograd.graph.increment_version = _always(None)  # type: ignore[assignment]


def tracebacks_unpruned() -> None:
    from grape.runtime import graphed

    graphed.prune_traceback = _always(None)


def any_thread() -> None:
    from grape.runtime import graphed

    graphed.get_ident = _always(1)


def escapes_unseen() -> None:
    from grape.tracing import tracer

    tracer._ESCAPES = frozenset()


ROWS = (
    Row("guards always hold", guards_hold, (GUARDS, "-k", "module_that_changed")),
    Row("globals and closures not guarded", _without("_function"), (GUARDS, "-k", "globals or closure")),
    Row("attributes of modules not guarded", _without("_module"), (GUARDS, "-k", "module_that_changed")),
    Row("classes not guarded", _without("_class"), (GUARDS, "-k", "kept_in")),
    Row("objects not guarded", _without("_object"), (GUARDS, "-k", "kept_in")),
    Row("dicts not guarded", _without("_dict"), (GUARDS, "-k", "kept_in or module_that")),
    Row("lists and tuples not followed", _without("_sequence"), (GUARDS,)),
    Row("imported modules not followed", _without("_library"), (GUARDS, "-k", "imported or replaced")),
    Row("sets, arrays, deques not watched", _without("_watch"), (GUARDS, "-k", "kept_in")),
    Row("addresses of parameters not compared", tensors_stay, (GUARDS, "-k", "module_that or gradients")),
    Row("hooks not noticed", hooks_are_unseen, (GUARDS, "-k", "hook")),
    Row("code and its names taken as constant", code_is_constant, (GUARDS, "-k", "globals")),
    Row("0.0 taken for -0.0", zeros_are_equal, (GUARDS, "-k", "minus_zero")),
    Row("autocast, grad mode, default dtype not in the key", environment_is_constant, (GUARDS, "-k", "modes or dtype")),
    Row("modes of the person not noticed", modes_are_unseen, (EFFECTS, "-k", "mode_of_the_person or function_mode")),
    Row("values read on the host not compared", prologue_is_constant, (EFFECTS, "-k", "values_read")),
    Row("reads after writes moved before them", reads_after_writes, (EFFECTS, "-k", "values_read")),
    Row("results handed out where they lie", results_in_place, (ARGUMENTS, EFFECTS, "-k", "results or kept_result")),
    Row("results that share memory separated", results_never_shared, (ARGUMENTS, "-k", "test_results")),
    Row("probe: shared memory not compared", aliases_unseen_by_the_probe, (ARGUMENTS, "-k", "share_memory")),
    Row("probe: tensors not compared", tensors_unseen_by_the_probe, (ARGUMENTS, "-k", "equal_but")),
    Row("probe: values not compared", values_unseen_by_the_probe, (ARGUMENTS, "-k", "equal_but")),
    Row("1 and True one key", keys_untyped, (ARGUMENTS, "-k", "equal_but")),
    Row("argument may be the region's own state", outside_overlaps, (ARGUMENTS, "-k", "becomes_an or read_from")),
    Row("capture not compared with the eager trace", lockstep_is_blind, (EFFECTS, "-k", "in_a_capture")),
    Row("replay not compared with the eager call", verification_is_blind, (EFFECTS, "-k", "in_a_capture")),
    Row("probe of another shape", probe_serves_stale_shapes, (EFFECTS, "-k", "kept_result")),
    Row("written arguments not copied back", written_back_never, (ARGUMENTS, "-k", "share_memory")),
    Row("arguments not copied in", inputs_never_copied, (ARGUMENTS, "-k", "test_results")),
    Row("bound arguments assumed in place", bound_without_a_look, (ARGUMENTS, "-k", "share_memory")),
    Row("random state not restored", random_state_stays, (EFFECTS, "-k", "random_operators")),
    Row("state not restored after verification", state_not_restored, (ARGUMENTS, EFFECTS, "-k", "state")),
    Row("only the view that was found restored", only_the_view_restored, (ARGUMENTS, "-k", "another_view")),
    Row("effects not noticed", effects_unseen, (EFFECTS, "-k", "effects")),
    Row("effects noticed in the first traces only", effects_seen_once, (EFFECTS, "-k", "effects or mode_of")),
    Row("state of arguments not guarded", arguments_without_state, (GUARDS, "-k", "argument_with_state")),
    Row("changes of containers not repeated", containers_unchanged, (ARGUMENTS, "-k", "changes or lives_on")),
    Row("state that is returned not itself", outside_results_copied, (ARGUMENTS, "-k", "are_state")),
    Row("version counters not moved", versions_stay, (ARGUMENTS, "-k", "versions")),
    Row("frames of Grape in tracebacks", tracebacks_unpruned, (EFFECTS, "-k", "traceback")),
    Row("any thread replays", any_thread, (EFFECTS, "-k", "threads")),
    Row("numpy and tolist not noticed", escapes_unseen, (EFFECTS, "-k", "escape")),
)


def _inside(index: int) -> int:
    """Break row `index` in this process, and run its tests."""
    import pytest

    row = ROWS[index]
    row.apply()
    return int(pytest.main(["-q", "-x", "--no-header", "--tb=no", "-p", "no:cacheprovider", *row.tests]))


def _run(index: int) -> tuple[int, str, float]:
    start = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, __file__, "--row", str(index)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    what = failed[0].split("::", 1)[-1].split(" - ")[0] if failed else done.stdout[-200:] + done.stderr[-300:]
    return done.returncode, what, time.perf_counter() - start


def main(names: list[str]) -> int:
    chosen = [i for i, row in enumerate(ROWS) if not names or any(name in row.what for name in names)]
    survived = 0
    with ThreadPoolExecutor(2) as pool:
        for index, (code, what, seconds) in zip(chosen, pool.map(_run, chosen), strict=True):
            noticed = code == 1  # pytest: tests were run, and some failed
            survived += not noticed
            print(
                f"{ROWS[index].what:<52} {'fails' if noticed else 'SURVIVED':<9} {what}  ({seconds:.0f} s)", flush=True
            )
    print(f"{len(chosen)} rows, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--row"]:
        sys.exit(_inside(int(sys.argv[2])))
    sys.exit(main(sys.argv[1:]))
