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
COLLECTIVES = "tests/unit/test_streams_collectives.py"
MEMORY = "tests/unit/test_streams_memory.py"
CAPTURES = "tests/unit/test_streams_captures.py"
FAULTS = "tests/property/test_stream_faults.py"


def _row(what: str, tests: tuple[str, ...], file: str, *edits: tuple[str, str]) -> Row:
    return Row(f"streams: {what}", compiled(*((file, old, new) for old, new in edits)), tests)


MEMORY_ROWS = (
    _row(
        "a segment is captured before those whose results it reads",
        (CAPTURES, "-k", "waits_for_the_graphs"),
        "engine.h",
        ("segment->waited < PATIENT && ", "false && "),
    ),
    _row(
        "homes that other graphs read move at a capture",
        (CAPTURES, "-k", "graphs_of_others"),
        "graphs.h",
        ("if (fragment.has_graph_elsewhere(made.slot, segment)) return {slot.address, slot.nbytes};", ""),
    ),
    _row(
        "the rest of a pass has no graphs once it is cut anew",
        (CAPTURES, "-k", "cut_anew"),
        "engine.h",
        ("fragment_->live && fragment_->uncut", "false"),
    ),
    _row(
        "a segment that is cut short one time in eight goes on",
        (CAPTURES, "-k", "often_cut_short"),
        "engine.h",
        ("SELDOM_CUT * last.splits", "2 * last.splits"),
    ),
    _row(
        "what waits for its graphs is given up at once",
        (CAPTURES, "-k", "not_given_up_at_once"),
        "engine.h",
        ("pace.excused++ < UNFAIR", "false"),
    ),
    _row(
        "numbers that change count as served",
        ("tests/unit/test_streams_fragments.py", "-k", "whose_numbers_change"),
        "engine.h",
        ("!fragment_->inner && step.run != Reason::Number;", "!fragment_->inner;"),
    ),
    _row(
        "what has not served for long keeps its memory",
        (GRAPHS, "-k", "served_for_long"),
        "engine.h",
        (
            "finder_.unused(fragment, counts.seen - settings_.unused)",
            "nullptr",
        ),
    ),
    _row(
        "a run that comes again is recorded as one iteration",
        ("tests/unit/test_streams_fragments.py", "-k", "comes_again"),
        "periods.h",
        ("return 2 * served > period;", "return false;"),
    ),
    _row(
        "E6: whole slots are copied back",
        (COLLECTIVES, "-k", "beside"),
        "epoch.h",
        ("if (copy.made) copy.changed", "copy.changed"),
    ),
    _row(
        "E6: what is not dense is not copied back",
        (COLLECTIVES, "-k", "beside"),
        "epoch.h",
        ("else copy->strided.push_back({in.at, std::move(written)});", ""),
    ),
    _row(
        "E7: a backend by itself is not watched",
        (COLLECTIVES, "-k", "by_itself"),
        "readers.h",
        ('Watched{"allgather", Effect::Exchanges, "Backend", false},', ""),
    ),
    _row(
        "E7: a callback of a future is not watched",
        (COLLECTIVES, "-k", "callback"),
        "readers.h",
        ('Watched{"then", Effect::Reads, "Future", false},', ""),
    ),
    _row(
        "a list over one version counter counts once for each pair",
        (COLLECTIVES, "-k", "version"),
        "recorder.h",
        ("size_t bumps = all / n + (met[last[i]]++ < all % n);", "size_t bumps = all;"),
    ),
    _row(
        "H1: a home is always vacant",
        (CONTRACT, "-k", "kept_result"),
        "memory.h",
        (
            "return !tenancy_->occupied.load(std::memory_order_acquire); }\n  Tenancy* tenancy",
            "return true; }\n  Tenancy* tenancy",
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
        ("    Trash now;\n    lease_.end(now);\n", ""),
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
            "pending_.push_back(weakly(storage));",
        ),
    ),
    _row(
        "addresses of pending storages used twice",
        (MEMORY,),
        "epoch.h",
        ("      pending_.push_back(weakly(storage));\n    } else if", "    } else if"),
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
        ("if (slot.changed) slot.out", "if (false) slot.out"),
    ),
    _row(
        "alignment not compared",
        (CONTRACT, "-k", "aligned"),
        "epoch.h",
        ("return alignment_class(reinterpret_cast<uintptr_t>(address), device_.alignment);", "return 0;"),
    ),
    _row(
        "E3: what is lent goes back before the launch",
        (MEMORY,),
        "epoch.h",
        (
            "      leases_.back().tenancy()->read_in = number_;\n",
            "      leases_.back().end(trash), leases_.pop_back();\n",
        ),
    ),
    _row(
        "gradients held, so that autograd does not add in place",
        (MEMORY, "-k", "add_in_place"),
        "epoch.h",
        ("} else if (has_python_object(t)) {", "} else if (true) {"),
    ),
    _row(
        "a scaled sum taken for exact",
        (CONTRACT, "-k", "rounds_twice"),
        "recorder.h",
        ("if (!step.op->rounds_once || step.op->scale < 0) return", "return"),
    ),
    _row(
        "alignments that repeat not seen",
        (CONTRACT, "-k", "alignments_that_repeat"),
        "engine.h",
        ("refined_.insert(step.signature);", ""),
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
        ("leases_.push_back(slot.home->move_out());", "slot.home->move_out().end(trash);"),
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
        ("return bytes_ + fragment.bytes() <= budget_;", "return true;"),
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
        (
            "      } catch (const c10::Error&) {\n        match = Match::Written, reason = Reason::Room;",
            "      } catch (const c10::Error&) {\n        throw;",
        ),
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
        ("if (!fragment->live && has_earned(*fragment) && ", "if (!fragment->live && "),
    ),
    _row(
        "what operators take as written is not measured",
        (GRAPHS, "-k", "take_longer"),
        "pace.h",
        ("std::max(LEAST_NS, usual - COMPARED_NS)", "LEAST_NS"),
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

ROWS = (*MEMORY_ROWS, *CAPTURES)
