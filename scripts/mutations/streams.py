"""Operator streams: each check of the C++ made blind, in an extension that is built for the row.

python scripts/mutation_table.py streams
"""

from __future__ import annotations

from .rows import Row, compiled, of_streams, rows_of

__all__ = ["ROWS"]

CONTRACT = "tests/unit/test_streams_contract.py"
ISOLATION = "tests/unit/test_streams_isolation.py"
GRAPHS = "tests/unit/test_streams_graphs.py"
DRAWS = "tests/unit/test_streams_draws.py"
MEMORY = "tests/unit/test_streams_memory.py"
FAULTS = "tests/property/test_stream_faults.py"


VALUES = (
    of_streams(
        "numbers compared by value",
        (CONTRACT, "-k", "number_that_changed"),
        "values.h",
        (
            "    double x = a.toDouble(), y = b.toDouble();\n    return std::memcmp(&x, &y, sizeof x) == 0;",
            "    return a.toDouble() == b.toDouble();",
        ),
    ),
    of_streams(
        "operators that read the host's memory below the key",
        (CONTRACT, "-k", "memory_of_the_host"),
        "registration.h",
        ("if (engine_->device().place.is_cpu() && reads_the_host(name)) {", "if (false) {"),
    ),
    of_streams(
        "autocast inside of an encoder layer on the CPU",
        (ISOLATION, "-k", "encoder_layer"),
        "operators.h",
        (" || casts_within(schema.name())", ""),
    ),
    of_streams(
        "numbers of another type are the same",
        (CONTRACT, "-k", "number_of_another_type"),
        "values.h",
        (
            "if (a.isBool() && b.isBool()) return a.toBool() == b.toBool();",
            "if ((a.isBool() || a.isInt()) && (b.isBool() || b.isInt())) return true;",
        ),
    ),
    of_streams(
        "strides not compared",
        (CONTRACT, "-k", "memory_format"),
        "values.h",
        (" && t.strides().equals(c10::IntArrayRef(strides))", ""),
    ),
    of_streams(
        "dtypes not compared", (CONTRACT, "-k", "dtype"), "values.h", ("return t.dtype() == dtype && ", "return ")
    ),
    of_streams(
        "any tensor is plain",
        (ISOLATION, "-k", "sparse or meta or subclass"),
        "values.h",
        ("return (t.key_set().raw_repr() & ~ordinary.raw_repr()) == 0 && t.has_storage();", "return t.has_storage();"),
    ),
    of_streams(
        "numbers inside of tensors not compared",
        (CONTRACT,),
        "matcher.h",
        (
            "if (std::memcmp(t.const_data_ptr(), in.number.const_data_ptr(), t.itemsize()) != 0) reason",
            "if (false) reason",
        ),
    ),
    of_streams(
        "types of numbers inside of tensors not compared",
        (CONTRACT, "-k", "number_that_changed"),
        "matcher.h",
        (" || t.dtype() != in.layout.dtype) return false;", ") return false;"),
    ),
)

OPERATORS = (
    of_streams(
        "running statistics are no writes",
        (MEMORY, "-k", "running_statistics"),
        "operators.h",
        (' || argument.name().rfind("running_", 0) == 0', ""),
    ),
    of_streams(
        "what checks its data is deferred",
        (CONTRACT, "-k", "looks_at_its_data"),
        "operators.h",
        ("else if (checks_data(schema.name())) always = Reason::Checks;", ""),
    ),
    of_streams(
        "divisions of integers are deferred on the CPU",
        (CONTRACT, "-k", "kernels_check"),
        "operators.h",
        ("checks_integers = !pointwise || divides(schema.name());", "checks_integers = !pointwise;"),
    ),
    of_streams(
        "what changes metadata is deferred",
        (CONTRACT, "-k", "where_it_lay"),
        "operators.h",
        ("op.hasTag(at::Tag::inplace_view) || lends || flattens(schema.name()) || ", "lends || "),
    ),
    of_streams(
        "kernels in Python unseen",
        (ISOLATION, "-k", "kernel_in_python"),
        "operators.h",
        ("in_python = python_registered(handle.dumpState());", ""),
    ),
    of_streams(
        "kernels of Python looked for once",
        (ISOLATION, "-k", "comes_and_goes"),
        "engine.h",
        ("    Operator::registrations++;\n", ""),
    ),
    of_streams(
        "warnings not listened for",
        (CONTRACT, "-k", "warning_names"),
        "recorder.h",
        ("if (step.run == Reason::None && heard.warnings) step.run = Reason::Effect;", ""),
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
    of_streams(
        "R1: draws whose generator was set in between",
        (CONTRACT, "-k", "who_moves_the_generator"),
        "pending.h",
        ("return !drawn_to_ || draws_->now() == *drawn_to_;", "return true;"),
    ),
    of_streams(
        "R2: a launch leaves the generator where it was then",
        (CONTRACT, DRAWS, "-k", "random or drawn"),
        "draws.h",
        ("    if (draws_) draws_->restore(draw_);\n", ""),
    ),
    of_streams(
        "draws of a generator of its own",
        (CONTRACT, "-k", "generator_of_the_person"),
        "recorder.h",
        (" && !is_given_generator(stack, op)", ""),
    ),
    of_streams(
        "draws into memory in one piece",
        (DRAWS, "-k", "normal"),
        "draws.h",
        (
            "return at::empty_strided(t.sizes(), t.strides(), t.options());",
            "return t.clone(at::MemoryFormat::Contiguous);",
        ),
    ),
    of_streams(
        "integers of composite operators deferred",
        (CONTRACT, ISOLATION),
        "recorder.h",
        ("if (step.run == Reason::None && integers && op.checks_integers) step.run = Reason::Integers;", ""),
        (
            "if (device_.is_cpu() && c10::isIntegralType(t.scalar_type(), /*includeBool=*/false)) "
            "{ step.run = Reason::Integers; return m; }",
            "",
        ),
    ),
    of_streams(
        "what a kernel moved elsewhere is recorded",
        (CONTRACT, "-k", "gives_a_tensor_its_size"),
        "recorder.h",
        ("if (!given.layout.fits(given.tensor) || given.tensor.storage().data() != given.data)", "if (false)"),
    ),
    of_streams(
        "results that somebody else has are recorded",
        (ISOLATION, CONTRACT),
        "recorder.h",
        ("if (step.run == Reason::None && c10::raw::intrusive_ptr::use_count(storage) > count)", "if (false)"),
    ),
    of_streams(
        "results that are no fresh memory are recorded",
        (ISOLATION, CONTRACT),
        "recorder.h",
        ("if (views_.has_seen(storage) || !is_torchs_own(storage, device_))", "if (false)"),
    ),
)

WAY = (
    of_streams(
        "operators of other threads deferred",
        (ISOLATION, "-k", "thread"),
        "threads.h",
        ("!is_followed() ? Reason::Thread : ", ""),
    ),
    of_streams(
        "operators deferred under a profiler",
        (GRAPHS, "-k", "profiler"),
        "threads.h",
        ("torch::profiler::impl::profilerEnabled()", "false"),
    ),
    of_streams(
        "captures before who traces Python",
        (GRAPHS, "-k", "traces_python"),
        "module.cpp",
        ("if (thread->c_profilefunc || thread->c_tracefunc) return true;", ""),
    ),
    of_streams(
        "versions not counted",
        (CONTRACT, "-k", "version"),
        "matcher.h",
        ("if (step.bumps) bump(step, op, stack);", ""),
    ),
    of_streams(
        "versions of results not counted",
        (CONTRACT, "-k", "version"),
        "matcher.h",
        ("for (uint8_t n = made.version; n && !impl->is_inference(); n--) impl->bump_version();", ""),
    ),
    of_streams(
        "no sides",
        (CONTRACT, "-k", "becomes_a_side"),
        "learner.h",
        ("!side.fragment && ++side.times >= 2", "false"),
    ),
    of_streams(
        "records go on through iterations",
        (CONTRACT, "-k", "leads_into"),
        "learner.h",
        ("bool leads = !parent_ && ", "bool leads = false && "),
    ),
    of_streams(
        "iterations as long as earlier ones begin where those did",
        (CONTRACT, "-k", "behind_such"),
        "learner.h",
        ("return period_ = 0, recorder_.reset(), nullptr;", "return recorder_.reset(), nullptr;"),
    ),
    of_streams(
        "reads find what is not issued",
        (ISOLATION, "-k", "reads_without"),
        "readers.h",
        ("else if (effect != Effect::Changes) engine->flush();", "else if (effect != Effect::Changes) {}"),
    ),
    of_streams(
        "backward passes through TorchScript's run with the key",
        (ISOLATION, "-k", "calls_of_torchscript"),
        "readers.h",
        ("effect == Effect::Spreads && Scripts::differentiates(args)", "false"),
    ),
    of_streams(
        "calls of TorchScript find what is not issued",
        (ISOLATION, "-k", "calls_of_torchscript"),
        "engine.h",
        ("  void run_apart(Reason why) {\n    flush();\n", "  void run_apart(Reason why) {\n"),
    ),
    of_streams(
        "waiting outside of operators is no part of a lap",
        ("tests/unit/test_streams_graphs.py", "-k", "waiting_outside"),
        "readers.h",
        ("return effect == Effect::Reads || effect == Effect::Exchanges ? engine : nullptr;", "return nullptr;"),
    ),
    of_streams(
        "records outlive a change of how operators compute",
        (CONTRACT, "-k", "how_operators"),
        "engine.h",
        ("    laps_.forget();\n    finder_.clear();\n", "    laps_.forget();\n"),
    ),
    of_streams(
        "any comparison of addresses exposes nothing",
        (ISOLATION,),
        "readers.h",
        ("if (ASKS_FOR_ADDRESS && !of_storage && compares_addresses())", "if (ASKS_FOR_ADDRESS && !of_storage)"),
    ),
    of_streams(
        "what copies a storage of another size is deferred",
        (CONTRACT, "-k", "copies_a_storage"),
        "operators.h",
        (" || copies_storage(schema.name())", ""),
    ),
    of_streams(
        "nothing is issued before a pause",
        (ISOLATION, "-k", "pause"),
        "engine.h",
        (
            "      follower_.launch();\n      raised = pending_.take_raised();\n      take_trash(trash);\n"
            "      if (open_.exchange",
            "      raised = pending_.take_raised();\n      take_trash(trash);\n      if (open_.exchange",
        ),
    ),
    of_streams(
        "what begins alike is taken for an iteration again and again",
        ("tests/unit/test_streams_fragments.py", "-k", "left_alone"),
        "fragment.h",
        ("return missed >= 3 && 16 * missed >= entered;", "return false;"),
    ),
    of_streams(
        "a part that also runs alone takes the place of its iteration",
        ("tests/unit/test_streams_fragments.py", "-k", "runs_alone"),
        "learner.h",
        ("if (is_outer_ || (planned_ && planned_ == period_))", "if (is_outer_)"),
    ),
)

TOLD = (
    of_streams(
        "sizes that were met before are new",
        ("tests/unit/test_streams_stops.py", "-k", "plan_for_sizes"),
        "first_visits.h",
        ("met_.insert(Signature(op, stack).exact).second", "met_.insert(Signature(op, stack).exact).second || true"),
    ),
    *rows_of(
        "grape.streams.session",
        ("tests/unit/test_streams_stops.py", "-k", "plan_for_sizes"),
        ("streams: all first visits have to be slow", ", share=_COLD)", ")"),
    ),
)

ROWS = (*VALUES, *OPERATORS, *WAY, *TOLD)
