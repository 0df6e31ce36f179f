"""What the host spares on each replayed call: writes of dicts that are counted, results built by generated code."""

from __future__ import annotations

from .rows import Row, edited, rows_of

__all__ = ["ROWS"]

RUNTIME = "grape.runtime"
CONTAINERS = "tests/unit/test_state_containers.py"
BUILDING = "tests/unit/test_building.py"
GUARDS = "tests/unit/test_runtime_guards.py"
HIDDEN = ("tests/unit/test_hidden_kernels.py",)
GROWING = ("tests/unit/test_slots_growing.py",)
ATTENTION = "tests/integration/test_attention_of_cells.py"
ARGUMENTS = "tests/unit/test_runtime_arguments.py"

ROWS = (
    *rows_of(
        f"{RUNTIME}.state.containers",
        (CONTAINERS,),
        ("writes of dicts not noticed", "sum(map(_dict_version, self._steady)) == self._total", "True"),
        ("empty dicts not looked at", "        if any(self._empty):", "        if False:"),
        ("dicts that were written not compared", "        if not self._all.same():\n            return False\n", ""),
        ("subclasses of dict taken for dicts", "_dict_version is not None and type(one) is dict", "True"),
        (
            "dicts that are written often left out",
            "[one for one in filled if not steady(one)]",
            "[one for one in filled if type(one) is not dict]",
        ),
        (
            "attributes that are written often left out",
            "[pair for pair in everything.attributes if not steady(pair[0])]",
            "[]",
        ),
        ("dicts that were written looked at as if they were new", "self.measure() == self.sizes and", ""),
        (
            "names of items not compared",
            "*map(dict.values, self.filled), *self.filled,",
            "*map(dict.values, self.filled),",
        ),
    ),
    Row(
        "writes of dicts not noticed, by whole calls",
        edited(f"{RUNTIME}.state.containers", "sum(map(_dict_version, self._steady)) == self._total", "True"),
        (GUARDS, "-k", "module_that_changed or kept_in"),
    ),
    Row(
        "addresses of state not compared before the launch",
        edited(f"{RUNTIME}.replaying.entry", "elif not guards.in_memory():", "elif False:"),
        (GUARDS, "-k", "module_that or gradients"),
    ),
    *rows_of(
        f"{RUNTIME}.replaying.building",
        (BUILDING,),
        ("attributes that the call deleted kept", "        del attributes[name]", "        pass"),
        ("a container is made wherever it stands", "        if known is not None:", "        if False:"),
    ),
    Row(
        "builders hold themselves",
        edited(f"{RUNTIME}.guarding.writing", "        namespace.clear()", "        _ = 0"),
        (BUILDING,),
    ),
    *rows_of(
        f"{RUNTIME}.dispatch.intercept",
        ("tests/unit/test_intercept.py",),
        (
            "let be: a module in which nothing replays is asked about at each call",
            "if not context.observing and number_of(module) in bystanders:",
            "if False:",
        ),
        (
            "let be: modules are met where none has a graph",
            "        elif not self._modules.serve:\n            self._unpatch_modules()\n",
            "",
        ),
    ),
    *rows_of(
        f"{RUNTIME}.guarding.levels",
        ("tests/integration/test_warnings_of_a_cell.py",),
        (
            "warned: frames of Grape's count for a level",
            "level -= not (is_between(caller) or is_trampoline(caller.f_code))",
            "level -= 1",
        ),
    ),
    *rows_of(
        "grape.advisor.optimizers",
        ("tests/unit/test_rules_of_streams.py", "tests/unit/test_rules_gr403.py"),
        (
            "a step: whatever happens on its line is the optimizer's",
            "_in_a_step(inner) if elsewhere",
            "True if elsewhere",
        ),
        (
            "a step: a sampler's is an optimizer's",
            "return not isinstance(node, ast.Call) or len(node.args) + len(node.keywords) <= 1",
            "return True",
        ),
    ),
    *rows_of(
        f"{RUNTIME}.dispatch.function_regions",
        ("tests/unit/test_intercept.py",),
        (
            "let be: functions with defaults are new in each cell",
            "a.__defaults__ is b.__defaults__",
            "a.__defaults__ is b.__defaults__ is None",
        ),
    ),
    *rows_of(
        f"{RUNTIME}.state.names",
        ("tests/unit/test_intercept.py",),
        (
            "let be: a patch of Grape's that comes anew is a change",
            "if base is not torch.nn.Module:  # which",
            "if True:  # which",
        ),
    ),
    *rows_of(
        f"{RUNTIME}.guarding.calls",
        ("tests/unit/test_runtime_effects.py", ATTENTION),
        ("watched: modules are loaded under the watch", "if self.ends_at_imports and", "if False and"),
        ("watched: much Python to its end", "if self.events > self.limit and", "if False and"),
    ),
    *rows_of(
        "grape.outlining.outliner",
        (ATTENTION,),
        ("let be: loops in which nothing replays are entered each time", "        loop.sleep()\n", ""),
    ),
    *rows_of(
        f"{RUNTIME}.dispatch.interrupts",
        ("tests/unit/test_interrupts.py",),
        ("interrupts: Grape at work is interrupted", "not self._welcome and at_work(frame)", "False"),
        ("interrupts: what Grape calls is interrupted", "        if not _is_neutral(file):", "        if True:"),
        ("interrupts: a finalizer is interrupted", " or frame.f_code is _LOST", ""),
        ("interrupts: any `__del__` is interrupted", ' or frame.f_code.co_name == "__del__"', ""),
        ("interrupts: a Grape that hangs waits for ever", " and now - since < PATIENCE_S", ""),
        (
            "interrupts: patience is not renewed",
            "            return True\n        self.since = None",
            "            return True",
        ),
        ("interrupts: the handler stays", "    if not list(_owners) and", "    if False and"),
        (
            "interrupts: a handler of ours before one of ours",
            "if isinstance(current, _Handling):  # there already",
            "if False:  # there already",
        ),
        ("interrupts: the default handler keeps its name", "if handling.before is _DEFAULT", "if False"),
        ("interrupts: asyncio's counts each that is sent again", '== "asyncio.unix_events"', '== "asyncio"'),
    ),
    Row(
        "a slot's occupant not noted",
        edited(f"{RUNTIME}.replaying.outputs", "if slot.keeper is lying:", "if slot.storage_object is not None:"),
        ("tests/unit/test_slots.py", "-k", "take_turns"),
    ),
    *rows_of(
        f"{RUNTIME}.replaying.outputs",
        ("tests/unit/test_slots_held.py", "-k", "made_again or overwritten"),
        ("let go: what is made again counts a use too many", "_use_count(storage._cdata), template)", "9, template)"),
        (
            "let go: an occupant's tensors are forgotten",
            "        self._in_place = None\n",
            "        self._in_place = None\n        for slot in self.slots:\n            slot.vacate()\n",
        ),
    ),
    Row(
        "let go: what is made again lies in other slots",
        edited(
            f"{RUNTIME}.replaying.outputs",
            "return [self._over_slot(slot, group) for slot",
            "return [self._over_slot(self.slots[-1], group) for slot",
        ),
        ("tests/unit/test_sharing.py",),
    ),
    Row(
        "a replay is compared with runs from other inputs",
        edited(
            f"{RUNTIME}.capture.proof.verification",
            "if not _equal(self.layout.leaves, self.placeholders.tensors):",
            "if False:",
        ),
        ("tests/unit/test_runtime_repeatability.py",),
    ),
    Row(
        "shared: output_specs with other values in them count as one",
        edited(f"{RUNTIME}.guarding.rebuilding", "(plain and repr(mine) == repr(theirs))", "plain"),
        ("tests/unit/test_sharing.py",),
    ),
    Row(
        "shared: tensors under the same numbers count as the same",
        edited(f"{RUNTIME}.guarding.sharing", " and all(map(is_, one.values(), value.values()))", ""),
        ("tests/unit/test_sharing.py",),
    ),
    Row(
        "the tape reads memory that its lender took back",
        edited(f"{RUNTIME}.backends.reference.graph", "room is not None and room.nbytes > 0", "True"),
        ("tests/unit/test_tape_replay.py",),
    ),
    Row(
        "a graph of arguments that share memory serves others",
        edited(
            f"{RUNTIME}.regions.region", "if self.shapes.get((layout.key, self.modes())) is not shape:", "if False:"
        ),
        ("tests/unit/test_slots_held.py", "-k", "share_memory"),
    ),
    Row(
        "an argument is not read where a graph of the call before will put it",
        edited(f"{RUNTIME}.buffers.placeholders", "slot = self._landing(store, owner, where, end)", "slot = None"),
        GROWING,
    ),
    Row(
        "an argument is read where a result is held",
        edited(f"{RUNTIME}.buffers.placeholders", "if slot.occupied or any(", "if any("),
        GROWING,
    ),
    Row(
        "sides do not take turns while calls run eagerly",
        edited(f"{RUNTIME}.buffers.lifetimes", "1 - self.sides.get(path, 1)", "self.sides.get(path, 0)"),
        GROWING,
    ),
    Row(
        "results that were arguments take turns as well",
        edited(f"{RUNTIME}.buffers.lifetimes", "            if path in self._made:\n", "            if True:\n"),
        GROWING,
    ),
    Row(
        "no result goes to a slot that a smaller shape had",
        edited(f"{RUNTIME}.capture.running.redirect", "if id(slot) in read and slot.hold", "if False and slot.hold"),
        GROWING,
    ),
    Row(
        "a replay that differs once is blamed on where results go",
        edited(f"{RUNTIME}.regions.captures", "(first or blamed <= self._faithful)", "first"),
        GROWING,
    ),
    Row(
        "the first one that differs is blamed at once",
        edited(f"{RUNTIME}.regions.captures", "(first or blamed <= self._faithful)", "blamed <= self._faithful"),
        GROWING,
    ),
    Row(
        "a capture that failed keeps its arguments",
        edited(
            f"{RUNTIME}.capture.proof.shared_executable",
            "        failure = None  # it knows",
            "        pass  # it knows",
        ),
        GROWING,
    ),
    Row(
        "it is never blamed on where results go",
        edited(f"{RUNTIME}.regions.captures", " and shape.unsettled < UNSETTLED - 1", ""),
        GROWING,
    ),
    Row(
        "tries of a shape count for ever",
        edited(
            f"{RUNTIME}.regions.captures",
            "shape.captures, shape.unsettled = shape.captures + 1, 0",
            "shape.captures += 1",
        ),
        ("tests/unit/test_runtime_repeatability.py",),
    ),
    Row(
        "a capture without memory ends its region for good",
        edited(f"{RUNTIME}.regions.captures", "if isinstance(outcome, NoMemory):", "if False:"),
        ("tests/unit/test_hostile_compression.py",),
    ),
    Row(
        "a kernel in Python of which torch tells nothing is captured",
        edited(f"{RUNTIME}.capture.proof.judging", "        or _hidden_kernel(trace.ops)\n", ""),
        HIDDEN,
    ),
    Row(
        "one that was registered by its operator's name is captured",
        edited(f"{RUNTIME}.state.operators", "file == _ANONYMOUS or ", ""),
        HIDDEN,
    ),
    Row(
        "what an operator's Python reads is not guarded",
        edited(
            f"{RUNTIME}.state.operators",
            "return parts if defined is None else parts + _written(defined)",
            "return parts",
        ),
        ("tests/unit/test_runtime_guards.py", "-k", "kernel or operator"),
    ),
    Row(
        "a module is told of where it was met",
        edited(
            f"{RUNTIME}.regions.region_state",
            "self.called_in, self.at = self.context.run, at",
            "self.called_in = self.context.run",
        ),
        ("tests/integration/test_new_user.py", "-k", "told"),
    ),
    Row(
        "what cannot be looked into is the person's error",
        edited(f"{RUNTIME}.guarding.structure", "except Exception as error:", "except ZeroDivisionError as error:"),
        ("tests/unit/test_runtime_arguments.py", "-k", "looked_into"),
    ),
    Row(
        "a result with gaps or expanded cloned",
        edited(f"{RUNTIME}.replaying.outputs", "return there.clone().stride() == tensor.stride()", "return True"),
        (ARGUMENTS, "-k", "test_results"),
    ),
)
