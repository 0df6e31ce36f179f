"""Operator streams: each check of the C++ made blind, in an extension that is built for the row.

python scripts/mutation_table.py streams
"""

from __future__ import annotations

from .rows import Row, compiled

__all__ = ["ROWS"]

CONTRACT = "tests/unit/test_streams_contract.py"
ISOLATION = "tests/unit/test_streams_isolation.py"
GRAPHS = "tests/unit/test_streams_graphs.py"
DRAWS = "tests/unit/test_streams_draws.py"
MEMORY = "tests/unit/test_streams_memory.py"
FAULTS = "tests/property/test_stream_faults.py"


def _row(what: str, tests: tuple[str, ...], file: str, *edits: tuple[str, str]) -> Row:
    return Row(f"streams: {what}", compiled(*((file, old, new) for old, new in edits)), tests)


VALUES = (
    _row(
        "numbers compared by value",
        (CONTRACT, "-k", "number_that_changed"),
        "values.h",
        (
            "    double x = a.toDouble(), y = b.toDouble();\n    return std::memcmp(&x, &y, sizeof x) == 0;",
            "    return a.toDouble() == b.toDouble();",
        ),
    ),
    _row(
        "numbers of another type are the same",
        (CONTRACT, "-k", "number_of_another_type"),
        "values.h",
        (
            "if (a.isBool() && b.isBool()) return a.toBool() == b.toBool();",
            "if ((a.isBool() || a.isInt()) && (b.isBool() || b.isInt())) return true;",
        ),
    ),
    _row(
        "strides not compared",
        (CONTRACT, "-k", "memory_format"),
        "values.h",
        (" && t.strides().equals(c10::IntArrayRef(strides))", ""),
    ),
    _row("dtypes not compared", (CONTRACT, "-k", "dtype"), "values.h", ("return t.dtype() == dtype && ", "return ")),
    _row(
        "any tensor is plain",
        (ISOLATION, "-k", "sparse or meta or subclass"),
        "values.h",
        ("return (t.key_set().raw_repr() & ~ordinary.raw_repr()) == 0 && t.has_storage();", "return t.has_storage();"),
    ),
    _row(
        "numbers inside of tensors not compared",
        (CONTRACT,),
        "engine.h",
        (
            "if (std::memcmp(t.const_data_ptr(), in.number.const_data_ptr(), t.itemsize()) != 0) reason",
            "if (false) reason",
        ),
    ),
    _row(
        "types of numbers inside of tensors not compared",
        (CONTRACT, "-k", "number_that_changed"),
        "engine.h",
        (" || t.dtype() != in.layout.dtype) return false;", ") return false;"),
    ),
)

OPERATORS = (
    _row(
        "running statistics are no writes",
        (MEMORY, "-k", "running_statistics"),
        "operators.h",
        (' || argument.name().rfind("running_", 0) == 0', ""),
    ),
    _row(
        "what checks its data is deferred",
        (CONTRACT, "-k", "looks_at_its_data"),
        "operators.h",
        ("else if (checks_data(schema.name())) always = Reason::Checks;", ""),
    ),
    _row(
        "what changes metadata is deferred",
        (CONTRACT, "-k", "where_it_lay"),
        "operators.h",
        ("op.hasTag(at::Tag::inplace_view) || lends || flattens(schema.name()) || ", "lends || "),
    ),
    _row(
        "kernels in Python unseen",
        (ISOLATION, "-k", "kernel_in_python"),
        "operators.h",
        ("in_python = python_registered(handle.dumpState());", ""),
    ),
    _row(
        "kernels of Python looked for once",
        (ISOLATION, "-k", "comes_and_goes"),
        "engine.h",
        ("    Operator::registrations++;\n", ""),
    ),
    _row(
        "warnings not listened for",
        (CONTRACT, "-k", "warning_names"),
        "recorder.h",
        ("if (step.run == Reason::None && warned) step.run = Reason::Effect;", ""),
    ),
    Row(
        "streams: draws unseen, by what an operator says and by what it does",
        compiled(
            ("recorder.h", "(step.run == Reason::None && generator_ != device_.generator_state())", "(false)"),
            ("operators.h", "op.hasTag(at::Tag::nondeterministic_seeded) || has_state) always", "false) always"),
            ("operators.h", "else if (generator || ", "else if ("),
        ),
        (CONTRACT, "-k", "random"),
    ),
    _row(
        "R1: draws whose generator was set in between",
        (CONTRACT, "-k", "who_moves_the_generator"),
        "engine.h",
        ("return !drawn_to_ || draws_->now() == *drawn_to_;", "return true;"),
    ),
    _row(
        "R2: a launch leaves the generator where it was then",
        (CONTRACT, DRAWS, "-k", "random or drawn"),
        "draws.h",
        ("    if (draws_) draws_->restore(draw_);\n", ""),
    ),
    _row(
        "draws of a generator of its own",
        (CONTRACT, "-k", "generator_of_the_person"),
        "recorder.h",
        (" && !is_given_generator(stack, op)", ""),
    ),
    _row(
        "draws into memory in one piece",
        (DRAWS, "-k", "normal"),
        "draws.h",
        (
            "return at::empty_strided(t.sizes(), t.strides(), t.options());",
            "return t.clone(at::MemoryFormat::Contiguous);",
        ),
    ),
    _row(
        "integers of composite operators deferred",
        (CONTRACT, ISOLATION),
        "recorder.h",
        ("if (step.run == Reason::None && integers && !op.pointwise) step.run = Reason::Integers;", ""),
        (
            "if (device_.is_cpu() && c10::isIntegralType(t.scalar_type(), /*includeBool=*/false)) "
            "{ step.run = Reason::Integers; return m; }",
            "",
        ),
    ),
    _row(
        "what a kernel moved elsewhere is recorded",
        (CONTRACT, "-k", "gives_a_tensor_its_size"),
        "recorder.h",
        ("if (!given.layout.fits(given.tensor) || given.tensor.storage().data() != given.data)", "if (false)"),
    ),
    _row(
        "results that somebody else has are recorded",
        (ISOLATION, CONTRACT),
        "recorder.h",
        ("if (step.run == Reason::None && c10::raw::intrusive_ptr::use_count(storage) > count)", "if (false)"),
    ),
    _row(
        "results that are no fresh memory are recorded",
        (ISOLATION, CONTRACT),
        "recorder.h",
        ("if (seen_.count(storage) || !is_torchs_own(storage, device_))", "if (false)"),
    ),
)

WAY = (
    _row(
        "a mode of Python's unseen",
        (ISOLATION, "-k", "mode"),
        "engine.h",
        ("below.has(c10::DispatchKey::Python)", "false"),
    ),
    _row(
        "operators of other threads deferred",
        (ISOLATION, "-k", "thread"),
        "engine.h",
        ("!is_followed() ? Reason::Thread : ", ""),
    ),
    _row(
        "operators deferred under a profiler",
        (GRAPHS, "-k", "profiler"),
        "engine.h",
        ("torch::profiler::impl::profilerEnabled()", "false"),
    ),
    _row(
        "captures before who traces Python",
        (GRAPHS, "-k", "traces_python"),
        "module.cpp",
        ("if (thread->c_profilefunc || thread->c_tracefunc) return true;", ""),
    ),
    _row(
        "an operator that raised ends no record",
        (CONTRACT, FAULTS),
        "engine.h",
        ("      counts.raised++;\n      recorder_.reset();\n      leave();\n", "      counts.raised++;\n"),
    ),
    _row(
        "versions not counted",
        (CONTRACT, "-k", "version"),
        "engine.h",
        ("if (step.bumps) bump(step, op, stack);", ""),
    ),
    _row(
        "versions of results not counted",
        (CONTRACT, "-k", "version"),
        "engine.h",
        ("for (uint8_t n = made.version; n && !impl->is_inference(); n--) impl->bump_version();", ""),
    ),
    _row(
        "no sides",
        (CONTRACT, "-k", "becomes_a_side"),
        "engine.h",
        ("!side.fragment && ++side.times >= 2", "false"),
    ),
    _row(
        "records go on through iterations",
        (CONTRACT, "-k", "leads_into"),
        "engine.h",
        ("bool leads = !parent_ && ", "bool leads = false && "),
    ),
    _row(
        "iterations as long as earlier ones begin where those did",
        (CONTRACT, "-k", "behind_such"),
        "engine.h",
        ("return period_ = 0, recorder_.reset();", "return recorder_.reset();"),
    ),
    _row(
        "reads find what is not issued",
        (ISOLATION, "-k", "reads_without"),
        "readers.h",
        ("else if (effect != Effect::Changes) engine->flush();", "else if (effect != Effect::Changes) {}"),
    ),
    _row(
        "waiting outside of operators is no part of a lap",
        ("tests/unit/test_streams_graphs.py", "-k", "waiting_outside"),
        "readers.h",
        ("return effect == Effect::Reads || effect == Effect::Exchanges ? engine : nullptr;", "return nullptr;"),
    ),
    _row(
        "records outlive a change of how operators compute",
        (CONTRACT, "-k", "how_operators"),
        "engine.h",
        ("    deferring_ = timing_ = false;\n    finder_.clear();\n", "    deferring_ = timing_ = false;\n"),
    ),
    _row(
        "any comparison of addresses exposes nothing",
        (ISOLATION,),
        "readers.h",
        ("if (N == DATA_PTR && compares_addresses())", "if (N == DATA_PTR)"),
    ),
    _row(
        "what copies a storage of another size is deferred",
        (CONTRACT, "-k", "copies_a_storage"),
        "operators.h",
        (" || copies_storage(schema.name())", ""),
    ),
    _row(
        "nothing is issued before a pause",
        (ISOLATION, "-k", "pause"),
        "engine.h",
        (
            "      launch();\n      raised = std::exchange(raised_, nullptr);\n      take_trash(trash);\n"
            "      if (open_.exchange",
            "      raised = std::exchange(raised_, nullptr);\n      take_trash(trash);\n      if (open_.exchange",
        ),
    ),
)

ROWS = (*VALUES, *OPERATORS, *WAY)
