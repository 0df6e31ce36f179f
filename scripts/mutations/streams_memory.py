"""Operator streams: each check of the C++ made blind, in an extension that is built for the row.

python scripts/mutation_table.py streams
"""

from __future__ import annotations

from .rows import of_streams

__all__ = ["ROWS"]

CONTRACT = "tests/unit/test_streams_contract.py"
ISOLATION = "tests/unit/test_streams_isolation.py"
GRAPHS = "tests/unit/test_streams_graphs.py"
DRAWS = "tests/unit/test_streams_draws.py"
COLLECTIVES = "tests/unit/test_streams_collectives.py"
UNSEEN = "tests/unit/test_streams_unseen_reads.py"
MEMORY = "tests/unit/test_streams_memory.py"
FAULTS = "tests/property/test_stream_faults.py"


ROWS = (
    of_streams(
        "numbers that change count as served",
        ("tests/unit/test_streams_fragments.py", "-k", "whose_numbers_change"),
        "decider.h",
        ("!fragment.inner && step.run != Reason::Number;", "!fragment.inner;"),
    ),
    of_streams(
        "what has not served for long keeps its memory",
        (GRAPHS, "-k", "served_for_long"),
        "budget.h",
        (
            "finder_.unused(fragment, counts_.seen - settings_.unused)",
            "nullptr",
        ),
    ),
    of_streams(
        "a run that comes again is recorded as one iteration",
        ("tests/unit/test_streams_fragments.py", "-k", "comes_again"),
        "periods.h",
        ("return 2 * served > period;", "return false;"),
    ),
    of_streams(
        "E6: whole slots are copied back",
        (COLLECTIVES, "-k", "beside"),
        "epoch.h",
        ("if (copy.made) copy.changed", "copy.changed"),
    ),
    of_streams(
        "E6: what is not dense is not copied back",
        (COLLECTIVES, "-k", "beside"),
        "epoch.h",
        ("else copy->strided.push_back({in.at, std::move(written)});", ""),
    ),
    of_streams(
        "E7: a backend by itself is not watched",
        (COLLECTIVES, "-k", "by_itself"),
        "watched.h",
        ('Watched{"allgather", Effect::Exchanges, "Backend", false},', ""),
    ),
    of_streams(
        "E7: a callback of a future is not watched",
        (COLLECTIVES, "-k", "callback"),
        "watched.h",
        ('Watched{"then", Effect::Reads, "Future", false},', ""),
    ),
    of_streams(
        "what converts tensors in lists, with the key excluded, finds what is not issued",
        (UNSEEN, "-k", "lists"),
        "readers.h",
        ("effect == Effect::Converts && !c10::impl::tls_is_dispatch_key_excluded(KEY)", "effect == Effect::Converts"),
    ),
    of_streams(
        "E4: addresses of storages expose them",
        (UNSEEN, "-k", "address"),
        "watched.h",
        ('Watched{"data_ptr", Effect::Exposes, "StorageBase", true},', ""),
    ),
    of_streams(
        "a storage that pending operators read is no longer there once it should not be",
        (UNSEEN, "-k", "dies"),
        "watched.h",
        ('Watched{"_expired", Effect::Reads, "StorageBase", true},', ""),
    ),
    of_streams(
        "addresses that torch asks storages for expose nothing",
        (UNSEEN, "-k", "saving_leaves"),
        "readers.h",
        ("of_storage && keeps_no_address() ? Effect::Reads : effect", "effect"),
    ),
    of_streams(
        "what TorchScript saves is issued",
        (UNSEEN, "-k", "torchscript"),
        "watched.h",
        ('Watched{"save_to_buffer", Effect::Reads, "ScriptModule", true},', ""),
    ),
    of_streams(
        "kernels in Python that another kernel calls run when they are called",
        (UNSEEN, "-k", "kernel"),
        "recorder.h",
        (" && heard.must_run()", " && false"),
    ),
    of_streams(
        "a list over one version counter counts once for each pair",
        (COLLECTIVES, "-k", "version"),
        "recorder.h",
        ("size_t bumps = all / n + (met[last[i]]++ < all % n);", "size_t bumps = all;"),
    ),
    of_streams(
        "H1: a home is always vacant",
        (CONTRACT, "-k", "kept_result"),
        "memory.h",
        (
            "return !tenancy_->occupied.load(std::memory_order_acquire); }\n  Tenancy* tenancy",
            "return true; }\n  Tenancy* tenancy",
        ),
    ),
    of_streams(
        "H2: a home does not move away from who stays",
        (CONTRACT, "-k", "kept_result"),
        "epoch.h",
        ("      move_home(fragment, slot);  // which fails where there is no memory\n", ""),
    ),
    of_streams(
        "H3: who lives in a home that goes away loses it",
        (CONTRACT, "-k", "outlive"),
        "memory.h",
        ("    Trash now;\n    lease_.end(now);\n", ""),
    ),
    of_streams(
        "E2: storages claimed twice",
        (CONTRACT, "-k", "alias or one_tensor"),
        "epoch.h",
        ("if (claim.epoch == number_ && (claim.written || write)) return false;", ""),
    ),
    of_streams(
        "E2: another tensor in the place of a pending one",
        (CONTRACT, "-k", "place_of_a_pending"),
        "epoch.h",
        ("slot.storage == storage && slot.base == base ? Bound::Yes : Bound::Aliased", "Bound::Yes"),
    ),
    of_streams(
        "E3: what is read from outside not held",
        (MEMORY,),
        "epoch.h",
        (
            "held_.push_back(c10::intrusive_ptr<StorageImpl>::reclaim_copy(storage));",
            "pending_.push_back(weakly(storage));",
        ),
    ),
    of_streams(
        "addresses of pending storages used twice",
        (MEMORY,),
        "epoch.h",
        ("      pending_.push_back(weakly(storage));\n    } else if", "    } else if"),
        ("    pending_.push_back(c10::weak_intrusive_ptr<StorageImpl>(storage.getWeakStorageImpl()));\n", ""),
    ),
    of_streams(
        "parts of a smaller storage",
        (MEMORY, CONTRACT),
        "epoch.h",
        ("if (base < data || base + slot.span > data + storage->nbytes()) return Bound::Aliased;", ""),
    ),
    of_streams(
        "changes not copied back",
        (CONTRACT,),
        "epoch.h",
        ("if (slot.changed) slot.out", "if (false) slot.out"),
    ),
    of_streams(
        "alignment not compared",
        (CONTRACT, "-k", "aligned"),
        "epoch.h",
        ("return alignment_class(reinterpret_cast<uintptr_t>(address), device_.alignment);", "return 0;"),
    ),
    of_streams(
        "E3: what is lent goes back before the launch",
        (MEMORY,),
        "epoch.h",
        (
            "      leases_.back().tenancy()->read_in = number_;\n",
            "      leases_.back().end(trash), leases_.pop_back();\n",
        ),
    ),
    of_streams(
        "gradients held, so that autograd does not add in place",
        (MEMORY, "-k", "add_in_place"),
        "epoch.h",
        ("} else if (has_python_object(t)) {", "} else if (true) {"),
    ),
    of_streams(
        "a scaled sum taken for exact",
        (CONTRACT, "-k", "rounds_twice"),
        "views.h",
        ("if (!step.op->rounds_once || step.op->scale < 0) return", "return"),
    ),
    of_streams(
        "alignments that repeat not seen",
        (CONTRACT, "-k", "alignments_that_repeat"),
        "signatures.h",
        ("refined_.insert(step.signature);", ""),
    ),
    of_streams(
        "a home is copied to while it is read",
        (MEMORY,),
        "epoch.h",
        ("else if (slot.home->read_in(number_)) move_home(fragment, slot);", ""),
    ),
    of_streams(
        "memory that homes left freed before the launch",
        (MEMORY,),
        "epoch.h",
        ("leases_.push_back(slot.home->move_out());", "slot.home->move_out().end(trash);"),
    ),
    of_streams(
        "what was bound for a refused operator stays",
        (MEMORY, CONTRACT),
        "epoch.h",
        ("    copies_out_.erase(copies_out_.begin() + mark.out, copies_out_.end());\n", ""),
        ("    copies_in_.erase(copies_in_.begin() + mark.in, copies_in_.end());\n", ""),
    ),
    of_streams(
        "E4: memory of NumPy's, exported before",
        (ISOLATION, "-k", "exported_before or numpy_writes"),
        "memory.h",
        ("return storage->resizable() && (", "return ("),
    ),
    of_streams(
        "E4: memory that is not torch's",
        (ISOLATION, "-k", "numpy or shared or lazy"),
        "memory.h",
        ("(device.allocated(storage) || is_lent(storage))", "true"),
    ),
    of_streams(
        "E4: exported memory deferred",
        (ISOLATION,),
        "exposed.h",
        ("(!exposed_.empty() && exposed_.count(storage))", "false"),
    ),
    of_streams(
        "E4: storages that Python holds deferred",
        (ISOLATION, "-k", "storage"),
        "python_objects.h",
        ("if (!object) return false;", "return false;"),
    ),
    of_streams(
        "budget not kept",
        (GRAPHS, "-k", "without_room"),
        "finder.h",
        ("return bytes_ + fragment.bytes() <= budget_;", "return true;"),
    ),
    of_streams(
        "no memory for homes is an error",
        (FAULTS, "-k", "homes"),
        "budget.h",
        (
            "        fragment.begin_to_live(worth_.price_of(fragment));\n      } catch (const c10::Error&) {\n"
            "        starve(fragment);\n",
            "        fragment.begin_to_live(worth_.price_of(fragment));\n      } catch (const c10::Error&) {\n"
            "        throw;\n",
        ),
    ),
    of_streams(
        "no memory for what is made elsewhere is an error",
        (FAULTS, "-k", "homes"),
        "fragment.h",
        ("    device.allocate(most_at_once());\n", ""),
    ),
    of_streams(
        "no memory for what is kept is an error",
        (FAULTS, "-k", "homes or kept"),
        "matcher.h",
        (
            "    } catch (const c10::Error&) {\n      match = Match::Written, reason = Reason::Room;",
            "    } catch (const c10::Error&) {\n      throw;",
        ),
    ),
    of_streams(
        "what is behind an operator that raised is issued",
        (FAULTS, "-k", "late"),
        "launcher.h",
        (
            "        return std::current_exception();\n      }\n    }\n    return nullptr;",
            "      }\n    }\n    return nullptr;",
        ),
    ),
)
