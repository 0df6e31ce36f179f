"""What Grape's dispatch modes leave as plain code has it: the keys below them, and those of the person's blocks."""

from __future__ import annotations

from .rows import rows_of

__all__ = ["ROWS"]

ISSUING = ("tests/unit/test_issuing.py",)
SETTINGS = ("tests/integration/test_settings_of_torch.py",)

ROWS = (
    *rows_of(
        "grape.runtime.guarding.effects",
        SETTINGS,
        ("settings: left otherwise", "watch.set = next(", "watch.set = None and next("),
        (
            "settings: those of a capture",
            "return Refused.because(Reason.CHANGES, changed=changed) if watch",
            "return None if watch",
        ),
    ),
    *rows_of(
        "grape.runtime.regions.observer",
        SETTINGS,
        ("settings: set up once", "watch.calls.loaded or watch.set is not None", "watch.calls.loaded"),
    ),
    *rows_of(
        "grape.runtime.guarding.purity",
        SETTINGS,
        ("settings: set to what they are", "name in _SETTERS or (", "False or ("),
        ("settings: those of a GPU, on the CPU", "(name in _OF_CUDA and not torch.cuda.is_available())", "False"),
    ),
    *rows_of(
        "grape.tracing.issuing",
        ISSUING,
        (
            "composite operators made as torch makes them",
            "if not way.counts if torch.is_inference_mode_enabled() else way.lists:",
            "if way.lists:",
        ),
        ("views of composite operators tracked twice", "if not way.counts if", "if True if"),
        ("kernels in kernels cast what was cast", "if outer is None else outer", "if True else outer"),
        ("conjugate views read as if they were none", "[*_BITS, *(", "[*("),
        ("operators in kernels not cast", "(key for key in casts if key in way.casts)]", "()]"),
        ("operators cast that autocast has cast", "if name not in _CAST_BY_OTHERS[device] and not", "if not"),
        ("numbers of TorchScript not taken", "type(args[i]) in _NUMBERS:", "False:"),
        ("numbers of forward derivatives taken", 'name.startswith("prims::") or', "False or"),
        (
            "a handler of the person's runs with other keys",
            "if way is None or blocks.in_mode:",
            "if way is None:",
        ),
    ),
    *rows_of(
        "grape.tracing.issuing",
        ("tests/unit/test_version_counters.py",),
        ("writes of lists not counted", "else way.lists:", "else False:"),
    ),
    *rows_of(
        "grape.tracing.tracer",
        ("tests/unit/test_blocks.py",),
        ("popped in blocks that put keys back", "or blocks.saves_keys or", "or"),
    ),
    *rows_of(
        "grape.tracing.blocks",
        ("tests/unit/test_blocks.py",),
        ("a key left behind by a block", "        drop_keys()\n", ""),
        (
            "a block that outlives the cell unseen",
            "if self._watching or self._guards or self._modes:",
            "if self._watching:",
        ),
    ),
    *rows_of(
        "grape.tracing.issuing",
        ("tests/integration/test_blocks_of_cells.py", "-k", "traces_the_persons"),
        ("fake tensors asked for kernels", "        if not _is_known(name):\n", "        if False:\n"),
    ),
    *rows_of(
        "grape.runtime.dispatch.intercept",
        ("tests/integration/test_blocks_of_cells.py", "-k", "traces_the_persons"),
        (
            "functions kept from a compiler that nobody announced",
            "before_compiled(self._leave_to_compiler)",
            "lambda: None",
        ),
    ),
    *rows_of(
        "grape.runtime.dispatch.intercept",
        ("tests/integration/test_compiled_beside_cells.py",),
        (
            "modules patched while they are compiled",
            "around_compilation(partial(begins, self._is_patched), partial(ends, self._is_patched))",
            "lambda: None",
        ),
        ("modules with a call of their own patched beside the compiler", "if call_in_their_own_way():", "if False:"),
    ),
    *rows_of(
        "grape.runtime.dispatch.candidates",
        ("tests/integration/test_compiled_beside_cells.py",),
        (
            "a compiler that was imported takes the patch for torch's",
            "is patch:\n        comp",
            "is None:\n        comp",
        ),
    ),
    *rows_of(
        "grape.runtime.once",
        ("tests/unit/test_once.py",),
        ("trials beneath modes of the person's", "Thread(target=attempt, daemon=True).start()", "attempt()"),
    ),
    *rows_of(
        "grape.runtime.regions.region",
        ("tests/integration/test_handled_exceptions.py",),
        (
            "the person's code runs while an error is handled",
            "what=unsupported))\n            return None",
            "what=unsupported))\n            return self.eager.passed(args, kwargs)",
        ),
    ),
    *rows_of(
        "grape.tracing.imports",
        ("tests/unit/test_unseen_modes.py", "-k", "wait_for"),
        ("one of many that wait for a module", "in list(self.acts.get(name, [])):", "in self.acts.get(name, [])[-1:]:"),
    ),
    *rows_of(
        "grape.tracing.blocks",
        ("tests/unit/test_blocks.py", "-k", "muted_mode"),
        (
            "higher-order operators beside a muted mode",
            "DispatchKey.Python) if muted else",
            "DispatchKey.Python) or True if muted else",
        ),
    ),
    *rows_of(
        "grape.tracing.blocks",
        ("tests/integration/test_blocks_of_cells.py", "-k", "otherwise"),
        (
            "torch computes otherwise while Grape watches",
            "mode.step_aside(partial(function, *args, **kwargs))",
            "function(*args, **kwargs)",
        ),
        (
            "functions that the compiler knows stay replaced",
            "before_compiled(self._give_functions_back)",
            "lambda: None",
        ),
        ("norms by singular values forgotten", "_BY_SINGULAR_VALUES = (2, -2,", "_BY_SINGULAR_VALUES = (-2,"),
        ("functions that were imported by name forgotten", "for m in modules for", "for m in [torch.linalg] for"),
    ),
    *rows_of(
        "grape.tracing.tracer",
        ("tests/integration/test_blocks_of_cells.py", "-k", "otherwise"),
        ("what nobody watched captured", "self.recorder.escapes.append((OTHERWISE", "list((OTHERWISE"),
        (
            "a mode that stepped aside does not come back",
            "            if _get_current_dispatch_mode() is not self:\n                _push_mode(self)\n",
            "            pass\n",
        ),
    ),
    *rows_of(
        "grape.runtime.capture.proof.judging",
        ("tests/unit/test_judging.py", "-k", "higher"),
        (
            "higher-order operators captured",
            "if name in (COMPILED, HIGHER_ORDER, OTHERWISE):",
            "if name == HIGHER_ORDER:\n        return None\n    if name == COMPILED:",
        ),
    ),
    *rows_of(
        "grape.tracing.compiling",
        ("tests/integration/test_blocks_of_cells.py", "-k", "compil"),
        ("Grape's code compiled", "    if not is_grape_code(code.co_filename):\n", "    if True:\n"),
    ),
    *rows_of(
        "grape.runtime.guarding.environment",
        ("tests/integration/test_blocks_of_cells.py", "-k", "torchscript"),
        ("torch.jit.trace taken for a call", "        or _traced_by_script() is not None\n", ""),
    ),
    *rows_of(
        "grape.runtime.guarding.environment",
        ("tests/unit/test_hostile_runtime.py", "-k", "library_that"),
        ("kernels that a library replaces are not seen", "        _kernels_in_python,\n", ""),
        ("kernels of other operators count", 'name.startswith("aten/") and ', ""),
    ),
    *rows_of(
        "grape.runtime.state.names",
        ("tests/unit/test_guards_of_libraries.py", "tests/unit/test_guards_of_classes.py"),
        ("tables of libraries are not watched", "        self._tables[id(table)] = table\n", ""),
        (
            "settings of libraries in dicts and objects are not seen",
            "self.settings += tables.settings_of(value, *said, ABSENT)",
            "pass",
        ),
        ("variables of the environment are not seen", "if words & tables.ENVIRONMENT:", "if False:"),
        (
            "what was registered is not followed",
            "        self._pending += [(one, where) for one in tables.own_functions_in(table)]\n",
            "",
        ),
        ("fields of dataclasses are not seen", ', *vars(cls).get("__dataclass_fields__", ())]', "]"),
    ),
    *rows_of(
        "grape.runtime.state.tables",
        ("tests/unit/test_guards_of_libraries.py",),
        (
            "settings that objects have of their class are not seen",
            "for name in names & shared.keys():",
            "for name in ():",
        ),
        ("settings of objects in objects are not seen", "elif depth and ", "elif False and "),
    ),
    *rows_of(
        "grape.tracing.recorder",
        ("tests/unit/test_recorder.py",),
        ("arguments compared that cannot be", "else ByIdentity(value)", "else value"),
    ),
    *rows_of(
        "grape.runtime.guarding.input_guard",
        ("tests/integration/test_blocks_of_cells.py", "-k", "gradient"),
        ("gradients asked of what is no leaf", "({name}.is_leaf and {name}.grad", "({name}.grad"),
    ),
    *rows_of(
        "grape.tracing.tracer",
        ("tests/unit/test_blocks.py", "-k", "person"),
        ("keys changed within a handler of the person's", " is self and not blocks.in_mode", " is self"),
    ),
    *rows_of(
        "grape.runtime.training.consumed",
        ("tests/integration/test_blocks_of_cells.py", "-k", "person"),
        ("saved tensors unpacked before the person's mode", "with _NoModes():", "if True:"),
    ),
)
