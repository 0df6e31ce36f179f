"""Operator streams: each check of the C++ made blind, in an extension that is built for the row.

python scripts/mutation_table.py streams
"""

from __future__ import annotations

from .rows import Row, compiled

__all__ = ["ROWS"]

CONTRACT = "tests/unit/test_streams_contract.py"
ISOLATION = "tests/unit/test_streams_isolation.py"
GRAPHS = "tests/unit/test_streams_graphs.py"
MEMORY = "tests/unit/test_streams_memory.py"
FAULTS = "tests/property/test_stream_faults.py"


def _row(what: str, tests: tuple[str, ...], file: str, *edits: tuple[str, str]) -> Row:
    return Row(f"streams: {what}", compiled(file, *edits), tests)


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
        (CONTRACT, "-k", "number_that_changed"),
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
        "promotion of numbers not compared",
        (CONTRACT,),
        "engine.h",
        (
            "if (!device_->is_scalar(t) || is_number(t) != is_number(in.number) || t.dtype() != in.layout.dtype)",
            "if (!device_->is_scalar(t))",
        ),
    ),
)

OPERATORS = (
    _row(
        "running statistics are no writes",
        (GRAPHS, "-k", "programs_of"),
        "operators.h",
        (' || argument.name().rfind("running_", 0) == 0', ""),
    ),
    _row(
        "what checks its data is deferred",
        (CONTRACT, "-k", "raises_does_so"),
        "operators.h",
        ("else if (checks_data(schema.name())) always = Reason::Checks;", ""),
    ),
    _row(
        "what changes metadata is deferred",
        (CONTRACT, ISOLATION),
        "operators.h",
        ("changes_metadata(schema.name())) always", "false) always"),
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
    _row(
        "draws unseen",
        (CONTRACT, "tests/unit/test_streams_draws.py"),
        "recorder.h",
        ("} else if (step.run == Reason::None && generator_ != device_.generator_state()) {", "} else if (false) {"),
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
        (CONTRACT, ISOLATION),
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

MEMORY_ROWS = (
    _row(
        "H1: a home is always vacant",
        (CONTRACT, "-k", "kept_result"),
        "memory.h",
        (
            "return !tenancy_->occupied.load(std::memory_order_acquire); }\n  bool read_in",
            "return true; }\n  bool read_in",
        ),
    ),
    _row(
        "H2: a home does not move away from who stays",
        (CONTRACT, "-k", "kept_result"),
        "epoch.h",
        ("      move_home(fragment, slot);  // which fails where there is no memory\n", ""),
    ),
    _row(
        "H3: who lives in a home that goes away loses it",
        (CONTRACT, "-k", "outlive"),
        "memory.h",
        ("    Trash now;\n    hand_over(now);\n", ""),
    ),
    _row(
        "E2: storages claimed twice",
        (CONTRACT, "-k", "alias or one_tensor"),
        "epoch.h",
        ("if (claim.epoch == number_ && (claim.written || write)) return false;", ""),
    ),
    _row(
        "E2: another tensor in the place of a pending one",
        (CONTRACT, "-k", "place_of_a_pending"),
        "epoch.h",
        ("slot.storage == storage && slot.base == base ? Bound::Yes : Bound::Aliased", "Bound::Yes"),
    ),
    _row(
        "E3: what is read from outside not held",
        (MEMORY,),
        "epoch.h",
        (
            "held_.push_back(c10::intrusive_ptr<StorageImpl>::reclaim_copy(storage));",
            "pending_.push_back(weak(storage));",
        ),
    ),
    _row(
        "addresses of pending storages used twice",
        (MEMORY,),
        "epoch.h",
        ("      pending_.push_back(weak(storage));\n", ""),
        ("    pending_.push_back(c10::weak_intrusive_ptr<StorageImpl>(storage.getWeakStorageImpl()));\n", ""),
    ),
    _row(
        "parts of a smaller storage",
        (MEMORY, CONTRACT),
        "epoch.h",
        ("if (base < data || base + slot.span > data + storage->nbytes()) return Bound::Aliased;", ""),
    ),
    _row(
        "changes not copied back",
        (CONTRACT,),
        "epoch.h",
        ("if (slot.changed) copies_out_", "if (false) copies_out_"),
    ),
    _row(
        "alignment not compared",
        (CONTRACT, "-k", "aligned"),
        "epoch.h",
        ("% device_.alignment;\n  }\n\n  void count", "& 0;\n  }\n\n  void count"),
    ),
    _row(
        "a home is copied to while it is read",
        (MEMORY,),
        "epoch.h",
        ("else if (slot.home->read_in(number_)) move_home(fragment, slot);", ""),
    ),
    _row(
        "memory that homes left freed before the launch",
        (MEMORY,),
        "epoch.h",
        ("slot.home->move_out(until_launch_);", "slot.home->move_out(trash);"),
    ),
    _row(
        "what was bound for a refused operator stays",
        (MEMORY, CONTRACT),
        "epoch.h",
        ("    copies_out_.erase(copies_out_.begin() + mark.out, copies_out_.end());\n", ""),
        ("    copies_in_.erase(copies_in_.begin() + mark.in, copies_in_.end());\n", ""),
    ),
    _row(
        "E4: memory of NumPy's, exported before",
        (ISOLATION, "-k", "exported_before or numpy_writes"),
        "memory.h",
        ("return storage->resizable() && (", "return ("),
    ),
    _row(
        "E4: memory that is not torch's",
        (ISOLATION, "-k", "numpy or shared or lazy"),
        "memory.h",
        ("(device.allocated(storage) || is_lent(storage))", "true"),
    ),
    _row(
        "E4: exported memory deferred",
        (ISOLATION,),
        "engine.h",
        ("(!exposed_.empty() && exposed_.count(storage))", "false"),
    ),
    _row(
        "E4: storages that Python holds deferred",
        (ISOLATION, "-k", "storage"),
        "python_objects.h",
        ("if (!object) return false;", "return false;"),
    ),
    _row(
        "budget not kept",
        (GRAPHS, "-k", "without_room"),
        "finder.h",
        ("if (bytes_ + fragment.bytes() > budget_) return false;", ""),
    ),
    _row(
        "no memory for homes is an error",
        (FAULTS, "-k", "homes"),
        "engine.h",
        (
            "        fragment->begin_to_live(price_of(*fragment));\n      } catch (const c10::Error&) {\n"
            "        starve(*fragment);\n",
            "        fragment->begin_to_live(price_of(*fragment));\n      } catch (const c10::Error&) {\n"
            "        throw;\n",
        ),
    ),
    _row(
        "no memory for what is made elsewhere is an error",
        (FAULTS, "-k", "homes"),
        "fragment.h",
        ("    device.allocate(most_at_once());\n", ""),
    ),
    _row(
        "no memory for what is kept is an error",
        (FAULTS, "-k", "homes or kept"),
        "engine.h",
        ("match = Match::Written, reason = Reason::Room;", "throw;"),
    ),
    _row(
        "what is behind an operator that raised is issued",
        (FAULTS, "-k", "late"),
        "launcher.h",
        (
            "        return std::current_exception();\n      }\n    }\n    return nullptr;",
            "      }\n    }\n    return nullptr;",
        ),
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
        ("!side.fragment && ++side.times == 2", "false"),
    ),
    _row(
        "reads find what is not issued",
        (ISOLATION, "-k", "reads_without"),
        "readers.h",
        ("else if (effect != Effect::Changes) engine->flush();", "else if (effect != Effect::Changes) {}"),
    ),
    _row(
        "records outlive a change of how operators compute",
        (CONTRACT, "-k", "how_operators"),
        "engine.h",
        ("    doubted_ = nullptr;\n    finder_.clear();\n", "    doubted_ = nullptr;\n"),
    ),
    _row(
        "any comparison of addresses exposes nothing",
        (ISOLATION,),
        "readers.h",
        ("if (N == DATA_PTR && compares_addresses())", "if (N == DATA_PTR)"),
    ),
    _row(
        "nothing is issued before a pause",
        (ISOLATION, "-k", "pause"),
        "engine.h",
        (
            "      launch();\n      raised = std::exchange(raised_, nullptr);\n      take_trash(trash);\n"
            "      open_ = false;",
            "      raised = std::exchange(raised_, nullptr);\n      take_trash(trash);\n      open_ = false;",
        ),
    ),
)  # fmt: skip

CAPTURES = (
    _row(
        "G1: stale graphs launched",
        (GRAPHS,),
        "fragment.h",
        ("if (slots[segment.slots[k]].address != graph.frozen[k]) return false;", ""),
    ),
    _row(
        "G3: a slot settles in a home of its own fragment",
        (GRAPHS, "-k", "what_a_pass_leaves"),
        "epoch.h",
        (" || (graphs_ && lent && is_made_by(fragment, lent))) return false;", ") return false;"),
    ),
    _row(
        "G3: what was free becomes a home of its own fragment",
        (MEMORY,),
        "epoch.h",
        (
            "if (base != slot.address || lies_in_own_home(fragment, slot, tenancy_of(storage))) {",
            "if (base != slot.address) {",
        ),
    ),
    _row(
        "captures are free",
        (GRAPHS, "-k", "as_long_as"),
        "engine.h",
        ("if (!fragment->live && fragment->earned >= price_of(*fragment))", "if (!fragment->live)"),
    ),
    _row(
        "captures without end",
        (GRAPHS, "-k", "never_stays"),
        "engine.h",
        ("if (++segment->captures > settings_.captures)", "if (false)"),
    ),
    _row(
        "nothing is doubted",
        (GRAPHS, "-k", "slower_than"),
        "engine.h",
        ("if (ratio <= WORTHWHILE)", "if (true)"),
    ),
    _row(
        "who lives in a home that is captured loses it",
        (GRAPHS, "-k", "captured_keeps"),
        "memory.h",
        (
            "occupant->set_data_ptr_noswap(std::move(memory_));",
            "occupant->set_data_ptr_noswap(device_.allocate(nbytes_));",
        ),
    ),
    _row(
        "a capture that fails is made again without end",
        (FAULTS, "-k", "memory_that_ends_in_a_capture"),
        "engine.h",
        ("else if (++segment.failed == 2)", "else if (false)"),
    ),
)

ROWS = (*VALUES, *OPERATORS, *MEMORY_ROWS, *WAY, *CAPTURES)
