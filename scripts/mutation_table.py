"""Breaks each guard and check of the runtime in turn and shows which tests notice.

    python scripts/mutation_table.py [NAME ...]

Each row runs the tests named beside it in a process of its own, with one check made blind; they must fail. Rows that
no test notices are printed as SURVIVED, and the exit status is 1; rows that break nothing any more, because the code
has moved, as STALE. Names choose rows; without any, all run. A row whose tests crash the interpreter is noticed too.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

# Imported once, before the rows fork: each then imports Grape, and breaks it, in a process of its own.
import hypothesis  # noqa: F401
import pytest
import torch
import torch._dynamo  # noqa: F401
from mutations import (
    ahead,
    branches,
    calls,
    compression,
    edges,
    first_run,
    letting_go,
    modes,
    on_device,
    originals,
    outlining,
    pairs,
    pipelines,
    private_streams,
    ranks,
    reaching,
    streams,
    streams_captures,
    streams_compiled,
    streams_first,
    streams_growth,
    streams_memory,
    streams_recurrent,
    training,
    turns,
    unchanged,
)
from mutations.rows import ROOT, Row, edited

GUARDS = "tests/unit/test_runtime_guards.py"
ARGUMENTS = "tests/unit/test_runtime_arguments.py"
EFFECTS = "tests/unit/test_runtime_effects.py"
REPEATABILITY = "tests/unit/test_runtime_repeatability.py"
SLOTS = "tests/unit/test_slots.py"
HELD = "tests/unit/test_slots_held.py"
HOST_DRAWS = "tests/unit/test_host_draws.py"
REDIRECTED = "tests/unit/test_slots_redirect.py"
LIFETIMES = "tests/unit/test_slots_lifetimes.py"
RULES = "tests/unit/test_alias_rules.py"
PREDICTED = "tests/unit/test_alias_predictor.py"
PARALLEL = 2
STALE = 70
"""Exit status of a row that could not be applied."""


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _set(owner: Any, name: str, value: Any) -> None:
    """Replaces what is there; a row whose target has moved is stale."""
    if not hasattr(owner, name):
        raise AttributeError(f"{owner.__name__} has no {name}")
    setattr(owner, name, value)


def guards_hold() -> None:
    from grape.runtime.guarding.guards import GuardSet

    _set(GuardSet, "holds", _always(True))


def _without(method: str) -> Callable[[], None]:
    """A kind of state that the walk passes by."""

    def apply() -> None:
        from grape.runtime.state import Reach

        _set(Reach, method, _always(None))

    return apply


def tensors_stay() -> None:
    from grape.runtime.guarding.guards import GuardSet

    _set(GuardSet, "_in_place", _always(True))
    _set(GuardSet, "in_memory", _always(True))


def hooks_are_unseen() -> None:
    from grape.runtime.guarding import guards

    _set(guards, "RemovableHandle", type("Handle", (), {"next_id": 0}))


def code_is_constant() -> None:
    from grape.runtime.guarding import guards
    from grape.runtime.state import names

    _set(guards, "written_code", _always(None))
    _set(names, "written_code", _always(None))
    _without("_names")()


def zeros_are_equal() -> None:
    from grape.runtime.guarding import guards

    original = guards.is_equal
    _set(
        guards,
        "is_equal",
        lambda one, other: original(one, other) or (type(one) is type(other) is float and one == other),
    )


def environment_is_constant() -> None:
    from grape.runtime.regions import region_state

    _set(region_state, "environment", _always(()))


def modes_are_unseen() -> None:
    from grape.runtime.capture.proof import checks

    _set(checks, "foreign_modes", _always(None))


def value_guards_is_constant() -> None:
    from grape.runtime.replaying import entry

    _set(entry, "_same", _always(True))


def reads_after_writes() -> None:
    from grape.runtime.replaying import value_guards

    original = value_guards.slice_of

    def blind(ops: Any, ordinal: int, born: Any) -> Any:
        everything = {number for op in ops for number in (*op.written, *op.born)}
        return original(ops, ordinal, everything)

    from grape.runtime.regions import observer

    _set(value_guards, "slice_of", blind)
    _set(observer, "slice_of", blind)


def results_in_place() -> None:
    from grape.runtime.replaying.outputs import Outputs

    _set(Outputs, "hand_out", lambda self: list(self._made))


def results_never_shared() -> None:
    from grape.runtime.replaying.outputs import Outputs

    original = Outputs.hand_out
    _set(Outputs, "hand_out", lambda self: [t.clone() for t in original(self)])


def aliases_unseen_by_the_probe() -> None:
    from grape.runtime.guarding.input_guard import _Writer

    _set(_Writer, "aliasing", _always(None))


def tensors_unseen_by_the_probe() -> None:
    from grape.runtime.guarding.input_guard import Tensors, _Writer

    def leaf(self: Any, number: int, expression: str) -> None:
        if number not in self.leaves:
            self.leaves[number] = self.local(expression)

    _set(_Writer, "leaf", leaf)
    _set(Tensors, "hold", _always(True))


def values_unseen_by_the_probe() -> None:
    from grape.runtime.guarding.input_guard import _Writer

    _set(_Writer, "static", _always(None))


def keys_untyped() -> None:
    from grape.runtime.guarding import input_guard, structure

    structure.typed = input_guard.typed = lambda names: tuple(names)


def outside_overlaps() -> None:
    from grape.runtime.replaying.entry import Entry

    _set(Entry, "_overlaps", _always(False))


def lockstep_is_blind() -> None:
    from grape.runtime.capture.running import in_step, lockstep

    class Agreeable(lockstep.Lockstep):
        def _step(self, func: Any, args: Any, kwargs: Any) -> Any:
            before = self._recorder.before(func, args, kwargs)
            result = func(*args, **kwargs)
            self._recorder.after(before, func, args, kwargs, result, (None, None), 0)
            return result

        def finish(self) -> Any:
            return self._recorder.finish()

    _set(in_step, "Lockstep", Agreeable)


def verification_is_blind() -> None:
    from grape.runtime.capture.proof import verification

    _set(verification, "first_mismatch", _always(None))
    _set(verification, "_same_state", _always(True))
    lockstep_is_blind()


def probe_serves_stale_shapes() -> None:
    from grape.runtime.regions import captures

    original = captures.compile_input_guard
    first: list[Any] = []

    def compile_input_guard(layout: Any, *, aliasing: bool) -> Any:
        first.append(original(layout, aliasing=aliasing))
        return first[0]

    _set(captures, "compile_input_guard", compile_input_guard)


def written_back_never() -> None:
    from grape.runtime.replaying.entry import Entry

    _set(Entry, "_copy_back", _always(None))


def inputs_never_copied() -> None:
    from grape.runtime.replaying.entry import Entry

    _set(Entry, "_copy_in", _always(None))


def random_state_stays() -> None:
    from grape.runtime.backends.reference.backend import ReferenceBackend

    _set(ReferenceBackend, "set_rng_state", _always(None))


def state_not_restored() -> None:
    from grape.runtime.capture.snapshot import Snapshot

    original = Snapshot.keep

    def keep(self: Any, *args: Any) -> None:
        original(self, *args)
        self.in_place, self._before, self.after = [], [], []

    _set(Snapshot, "keep", keep)


def only_the_view_restored() -> None:
    from grape.runtime.capture import snapshot

    snapshot.whole = snapshot._typed = lambda tensor: tensor.detach()


def effects_unseen() -> None:
    from grape.runtime.capture.proof import checks
    from grape.runtime.regions import observer

    _set(checks, "effect_of", _always(None))
    _set(observer, "effect_of", _always(None))


def effects_seen_once() -> None:
    from grape.runtime.capture import attempt

    _set(attempt, "check_effects", _always(None))


def arguments_without_state() -> None:
    from grape.runtime.capture import attempt

    _set(attempt, "stateful", _always(()))


def containers_unchanged() -> None:
    from grape.runtime.replaying.building import _Writer

    _set(_Writer, "change", _always(None))


def outside_results_copied() -> None:
    from grape.runtime.guarding.guards import GuardSet

    _set(GuardSet, "owns", _always(False))


def versions_stay() -> None:
    from grape.runtime.replaying import entry

    _set(entry, "set_versions", _always(None))


def tracebacks_unpruned() -> None:
    from grape.runtime import graphed

    _set(graphed, "prune_traceback", _always(None))


def any_thread() -> None:
    from grape.runtime import graphed

    _set(graphed, "get_ident", _always(1))


def escapes_unseen() -> None:
    from grape.tracing import escapes

    _set(escapes, "_ESCAPES", frozenset())


RUNTIME, ALIAS = "grape.runtime", "grape.runtime.alias"
SLOT = "iter(self._slots(entries, target.path))"
ROWS = (
    Row("guards always hold", guards_hold, (GUARDS, "-k", "module_that_changed")),
    Row("globals and closures not guarded", _without("_function"), (GUARDS, "-k", "globals or closure")),
    Row("attributes of modules not guarded", _without("_module"), (GUARDS, "-k", "module_that_changed")),
    Row("classes not guarded", _without("_class"), (GUARDS, "-k", "kept_in")),
    Row("objects not guarded", _without("_object"), (GUARDS, "-k", "kept_in")),
    Row("dicts not guarded", _without("_dict"), (GUARDS, "-k", "kept_in or module_that")),
    Row("lists and tuples not followed", _without("_sequence"), (GUARDS,)),
    Row("imported modules not followed", _without("_imported"), (GUARDS, "-k", "imported or replaced")),
    Row("sets, arrays, deques not watched", _without("_watch"), (GUARDS, "-k", "kept_in")),
    Row("addresses of parameters not compared", tensors_stay, (GUARDS, "-k", "module_that or gradients")),
    Row("hooks not noticed", hooks_are_unseen, (GUARDS, "-k", "hook")),
    Row("code and its names taken as constant", code_is_constant, (GUARDS, "-k", "globals")),
    Row("0.0 taken for -0.0", zeros_are_equal, (GUARDS, "-k", "minus_zero")),
    Row("autocast, grad mode, default dtype not in the key", environment_is_constant, (GUARDS, "-k", "modes or dtype")),
    Row("modes of the person not noticed", modes_are_unseen, (EFFECTS, "-k", "mode_of_the_person or function_mode")),
    Row("values read on the host not compared", value_guards_is_constant, (EFFECTS, "-k", "values_read")),
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
    Row(
        "bound arguments assumed in place",
        edited(f"{RUNTIME}.replaying.entry", "if placeholders.bound and self.moved(leaves):", "if False:"),
        (ARGUMENTS, "-k", "share_memory"),
    ),
    Row("random state not restored", random_state_stays, (EFFECTS, "-k", "random_operators")),
    Row(
        "draws on the CPU not repeated",
        edited(f"{RUNTIME}.replaying.entry", "        self.draws.repeat()\n", ""),
        (HOST_DRAWS,),
    ),
    Row(
        "what a run does to the CPU's generator not compared",
        edited(f"{RUNTIME}.replaying.host_draws", "return torch.equal(found, torch.get_rng_state())", "return True"),
        (HOST_DRAWS, "-k", "one or seeds"),
    ),
    Row(
        "numbers drawn on the CPU that live on",
        edited(f"{RUNTIME}.replaying.host_draws", "not call.storages[number].expired()", "False"),
        (HOST_DRAWS, "-k", "something_uses"),
    ),
    Row(
        "numbers drawn on the CPU that are used",
        edited(f"{RUNTIME}.replaying.host_draws", "if op.kind != HOST_RANDOM and any(", "if False and any("),
        (HOST_DRAWS, "-k", "something_uses"),
    ),
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
    # Slots, redirected results, prediction.
    Row(
        "held results: not looked at before a replay",
        edited(f"{RUNTIME}.replaying.entry", "        for slot in self.outputs.slots:\n", "        for slot in ():\n"),
        (HELD,),
    ),
    Row(
        "held arguments: not looked at before a copy",
        edited(
            f"{RUNTIME}.replaying.entry",
            "slot = placeholders.slots[index]\n            if _use_count(slot.cdata) > slot.idle or "
            "getrefcount(slot.storage_object) > slot.references:",
            "slot = placeholders.slots[index]\n            if False:",
        ),
        (HELD, "-k", "placeholder"),
    ),
    Row(
        "arguments that lie elsewhere not copied",
        edited(
            f"{RUNTIME}.replaying.entry",
            "if leaves[i].data_ptr() != addresses[i]]\n\n    def moved",
            "if False]\n\n    def moved",
        ),
        (HELD,),
    ),
    Row(
        "modes not compared before a replay with effects",
        edited(
            f"{RUNTIME}.replaying.entry",
            "        if effectful:\n            if self.modes_now() != self.modes:",
            "        if effectful:\n            if False:",
        ),
        (HELD, "-k", "modes"),
    ),
    Row(
        "modes not compared after a replay without effects",
        edited(
            f"{RUNTIME}.replaying.entry",
            "        if not effectful:\n            if self.modes_now() != self.modes:",
            "        if not effectful:\n            if False:",
        ),
        (HELD, "-k", "modes"),
    ),
    Row(
        "redirected to where the next graph writes",
        edited(f"{RUNTIME}.capture.running.redirect", " or id(slot) in written - read", ""),
        (REDIRECTED,),
    ),
    Row(
        "redirected into a side that is occupied",
        edited(
            f"{RUNTIME}.capture.running.redirect",
            "id(slot) not in taken and not slot.occupied]",
            "id(slot) not in taken]",
        ),
        (REDIRECTED,),
    ),
    Row(
        "no third side where both are occupied",
        edited(
            f"{RUNTIME}.capture.running.redirect",
            "if all(id(slot) in taken or id(slot) in written - read or slot.occupied for slot in sides):",
            "if False:",
        ),
        (REDIRECTED,),
    ),
    Row(
        "redirected where the next graph writes",
        edited(
            f"{RUNTIME}.capture.running.redirect", "(id(one) in written) - (id(one) in read)", "-(id(one) in written)"
        ),
        (REDIRECTED,),
    ),
    Row(
        "generated `out=` forms taken",
        edited(
            f"{RUNTIME}.capture.running.redirect",
            "if not torch._C._dispatch_has",
            "if True or not torch._C._dispatch_has",
        ),
        (REDIRECTED,),
    ),
    Row(
        "placeholders in slots that are occupied",
        edited(f"{RUNTIME}.buffers.slots", "nbytes)).occupied)", "nbytes)) is None)"),
        (SLOTS, "-k", "vacant"),
    ),
    Row(
        "results of a replay not recognized as arguments",
        edited(
            f"{RUNTIME}.buffers.slots",
            "        return {slot.cdata: slot for slot in self if",
            "        return {slot.cdata: slot for slot in () if",
        ),
        (SLOTS, HELD, "-k", "outgrown or fed_back"),
    ),
    Row(
        "keeper drops what it holds",
        edited(
            f"{RUNTIME}.buffers.slots",
            "self.keeper, self.cdata, self.idle, self.predicted = keeper, cdata, idle, False",
            "self.keeper, self.cdata, self.idle, self.predicted = None, cdata, idle, False",
        ),
        (SLOTS, "-k", "outlives"),
    ),
    Row(
        "templates larger than their storage counts",
        edited(
            f"{RUNTIME}.buffers.slots",
            "made.set_(self.lend(nbytes))",
            "made.set_(self.lend(self.nbytes))\n            made = made[: math.prod(shape)]",
        ),
        (SLOTS, "-k", "template"),
    ),
    Row(
        "slots with an occupant released with their owner",
        edited(f"{RUNTIME}.buffers.slots", "if not slot.occupied and not slot.graphs]", "if not slot.graphs]"),
        (SLOTS, "-k", "drop or clear or bequeaths"),
    ),
    Row(
        "slots that another graph uses released",
        edited(f"{RUNTIME}.buffers.slots", "if not slot.occupied and not slot.graphs]", "if not slot.occupied]"),
        (SLOTS, "-k", "drop"),
    ),
    Row(
        "storages held alone not seen",
        edited(f"{RUNTIME}.buffers.slots", " or getrefcount(self.storage_object) > self.references)", ")"),
        (SLOTS, "-k", "refers"),
    ),
    Row(
        "slots of a forgotten store dropped",
        edited(f"{RUNTIME}.buffers.slots", "    _orphans.extend(inherited)\n", ""),
        (SLOTS, "-k", "bequeaths"),
    ),
    Row(
        "idle uses of a result: one too many",
        edited(f"{RUNTIME}.buffers.slots", "= keeper, cdata, idle, False", "= keeper, cdata, idle + 1, False"),
        (SLOTS, "-k", "in_place"),
    ),
    Row(
        "idle uses of a result: one too few",
        edited(f"{RUNTIME}.buffers.slots", "= keeper, cdata, idle, False", "= keeper, cdata, idle - 1, False"),
        (SLOTS, "-k", "in_place"),
    ),
    Row(
        "results that linger taken for dead",
        edited(f"{RUNTIME}.buffers.lifetimes", "judged and not self._kept[path]", "judged"),
        (LIFETIMES,),
    ),
    Row(
        "results that live two calls later taken for dead",
        edited(f"{RUNTIME}.buffers.lifetimes", "self._results.get(call - 2, {})", "{}"),
        (LIFETIMES,),
    ),
    Row(
        "prediction into a placeholder that is occupied",
        edited(f"{ALIAS}.predictor", "(one for one in self._slots(entries, target.path) if not one.occupied)", SLOT),
        (PREDICTED, "-k", "occupant or place"),
    ),
    Row(
        "prediction where autograd follows",
        edited(f"{ALIAS}.predictor", "(grad and tensor.requires_grad)", "False"),
        (PREDICTED, RULES, "-k", "autograd"),
    ),
    Row(
        "prediction under a dispatch mode",
        edited(
            f"{ALIAS}.predictor",
            "c._len_torch_dispatch_stack() == int(region.is_traced)",
            "True",
        ),
        (PREDICTED, "-k", "dispatch"),
    ),
    Row(
        "prediction under a function mode",
        edited(f"{ALIAS}.predictor", "not c._len_torch_function_stack()", "True"),
        (PREDICTED, "-k", "function_mode or default or where_nothing"),
    ),
    Row(
        "prediction under autocast",
        edited(f"{ALIAS}.predictor", "and not torch.is_autocast_enabled(self._device.type)", ""),
        (PREDICTED, "-k", "autocast"),
    ),
    Row(
        "prediction under deterministic algorithms",
        edited(f"{ALIAS}.predictor", "and not c._get_deterministic_algorithms()", ""),
        (PREDICTED, "-k", "deterministic"),
    ),
    Row(
        "prediction on another stream",
        edited(f"{ALIAS}.predictor", "and region.on_its_stream()", ""),
        (PREDICTED, "-k", "stream"),
    ),
    Row(
        "prediction in another thread",
        edited(f"{ALIAS}.predictor", "self.paused or get_ident() != self._thread or", "self.paused or"),
        (PREDICTED, "-k", "thread"),
    ),
    Row(
        "prediction inside a region",
        edited(f"{ALIAS}.predictor", "if self.paused or get_ident()", "if get_ident()"),
        (PREDICTED, "-k", "inside"),
    ),
    Row(
        "predicted results of any device, type and layout",
        edited(
            f"{ALIAS}.predictor",
            "if plan is not None and self._harmless(plan) else None",
            "if plan is not None else None",
        ),
        (PREDICTED, "-k", "autograd or subclass"),
    ),
    Row(
        "mispredictions never demote",
        edited(f"{ALIAS}.predictor", "if target.score <= DEMOTED:", "if False:"),
        (PREDICTED, "-k", "demoted"),
    ),
    Row(
        "predictions never weighed",
        edited(f"{ALIAS}.predictor", "if site.overhead_ns > saved_ns and", "if False and"),
        (PREDICTED, "-k", "weighed"),
    ),
    Row(
        "rule: other shapes chosen from",
        edited(f"{ALIAS}.rules", " or not (one.shape == other.shape == condition.shape)", ""),
        (RULES, "-k", "where"),
    ),
    Row(
        "rule: other dtypes joined",
        edited(f"{ALIAS}.rules", "if part.dtype != first.dtype or part.dim()", "if part.dim()"),
        (RULES, "-k", "torch.cat"),
    ),
    Row(
        "rule: other dtypes added",
        edited(f"{ALIAS}.rules", "if other.dtype != one.dtype or not", "if not"),
        (RULES, "-k", "add"),
    ),
    Row(
        "rule: other shapes added",
        edited(f"{ALIAS}.rules", "(other.shape == one.shape and _dense(other))", "_dense(other)"),
        (RULES, "-k", "add"),
    ),
    Row(
        "rule: stacked at another dimension",
        edited(f"{ALIAS}.rules", "dim + first.dim() + 1, len(parts)", "dim + first.dim(), len(parts)"),
        (RULES, "-k", "stack"),
    ),
    Row(
        "rule: strides of one element not looked at",
        edited(f"{ALIAS}.rules", "        if stride != step:\n            return False\n", ""),
        (RULES, "-k", "clone"),
    ),
    Row(
        "torch's guards of arguments hold always",
        edited(f"{RUNTIME}.guarding.input_guard", "any(check(*leaves) for check in self._checks)", "True"),
        (ARGUMENTS, "-k", "equal_but"),
    ),
    Row(
        "torch's guards of state hold always",
        edited(f"{RUNTIME}.guarding.tensor_guards", "and compiled(*self._tensors)", ""),
        (GUARDS,),
    ),
    Row(
        "a replay that differs excused without a look",
        edited(
            f"{RUNTIME}.capture.proof.verification",
            "        seen: list[Sequence[torch.Tensor]] = [self.eager.after.leaves]\n",
            "        return True\n        seen = []\n",
        ),
        (REPEATABILITY,),
    ),
    Row(
        "random operators draw nothing",
        edited(
            "grape.tracing.operators",
            "            return bool(given != 0)\n    return True\n",
            "            pass\n    return False\n",
        ),
        (HELD, "-k", "discarded"),
    ),
    *training.ROWS,
    *pairs.ROWS,
    *pipelines.ROWS,
    *originals.ROWS,
    *outlining.ROWS,
    *branches.ROWS,
    *private_streams.ROWS,
    *turns.ROWS,
    *unchanged.ROWS,
    *compression.ROWS,
    *edges.ROWS,
    *ahead.ROWS,
    *first_run.ROWS,
    *calls.ROWS,
    *letting_go.ROWS,
    *modes.ROWS,
    *on_device.ROWS,
    *streams.ROWS,
    *streams_first.ROWS,
    *ranks.ROWS,
    *reaching.ROWS,
    *streams_memory.ROWS,
    *streams_captures.ROWS,
    *streams_compiled.ROWS,
    *streams_growth.ROWS,
    *streams_recurrent.ROWS,
)


def _inside(index: int, report: str) -> None:
    """Break row `index` in this process, run its tests, and exit as pytest does. `report` is a file for the output."""
    with open(report, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        ROWS[index].apply()
    except Exception:
        traceback.print_exc()
        os._exit(STALE)
    code = pytest.main(
        [
            "-q",
            "-x",
            "--no-header",
            "--tb=no",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore::pytest.PytestAssertRewriteWarning",
            *ROWS[index].tests,
        ]
    )
    sys.stdout.flush()
    os._exit(int(code))


def _outcome(index: int, code: int, report: Path, seconds: float) -> bool:
    """Print what became of a row; True where a test failed, or a signal ended them."""
    noticed = code == 1 or code < 0
    text = report.read_text()
    failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    what = failed[0].split("::", 1)[-1].split(" - ")[0] if failed else text.strip().splitlines()[-1:]
    outcome = "fails" if noticed else "STALE" if code == STALE else "SURVIVED"
    print(f"{ROWS[index].what:<52} {outcome:<9} {what}  ({seconds:.0f} s)", flush=True)
    return noticed


def main(names: list[str]) -> int:
    pending = [i for i, row in enumerate(ROWS) if not names or any(name in row.what for name in names)]
    total, survived = len(pending), 0
    fork = multiprocessing.get_context("fork")
    running: dict[Any, tuple[int, Any, float]] = {}
    with TemporaryDirectory() as folder:
        while pending or running:
            while pending and len(running) < PARALLEL:
                index = pending.pop(0)
                child = fork.Process(target=_inside, args=(index, f"{folder}/{index}"))
                child.start()
                running[child.sentinel] = index, child, time.perf_counter()
            for sentinel in multiprocessing.connection.wait(list(running)):
                index, child, start = running.pop(sentinel)
                child.join()
                survived += not _outcome(index, child.exitcode, Path(folder, str(index)), time.perf_counter() - start)
    print(f"{total} rows, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
