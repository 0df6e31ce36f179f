"""Operator streams: when segments are captured, and what stays of the graphs of others.

python scripts/mutation_table.py streams
"""

from __future__ import annotations

from .rows import of_streams, rows_of

__all__ = ["ROWS"]

CAPTURES = "tests/unit/test_streams_captures.py"
PREPARATION = "tests/unit/test_streams_preparation.py"
GRAPHS = "tests/unit/test_streams_graphs.py"
MEMORY = "tests/unit/test_streams_memory.py"
FAULTS = "tests/property/test_stream_faults.py"

ROWS = (
    of_streams(
        "an operator is left as written before what floats takes another alignment",
        (CAPTURES, "-k", "another_alignment"),
        "epoch.h",
        ("slot.otherwise < 2 ||", "slot.otherwise < 4 ||"),
    ),
    of_streams(
        "a segment is captured before those whose results it reads",
        (CAPTURES, "-k", "waits_for_the_graphs"),
        "captures.h",
        ("segment->waited < PATIENT && ", "false && "),
    ),
    of_streams(
        "homes that other graphs read move at a capture",
        (CAPTURES, "-k", "graphs_of_others"),
        "graphs.h",
        ("if (fragment.stays_at_capture(made.slot, segment)) return {slot.address, slot.nbytes};", ""),
    ),
    of_streams(
        "the rest of a pass has no graphs once it is cut anew",
        (CAPTURES, "-k", "cut_anew"),
        "pending.h",
        ("fragment.live && fragment.uncut", "false"),
    ),
    of_streams(
        "a segment that is cut short one time in eight goes on",
        (CAPTURES, "-k", "often_cut_short"),
        "pending.h",
        ("SELDOM_CUT * last.splits", "2 * last.splits"),
    ),
    of_streams(
        "what waits for its graphs is given up at once",
        (CAPTURES, "-k", "not_given_up_at_once"),
        "laps.h",
        ("pace.excused++ < UNFAIR", "false"),
    ),
    of_streams(
        "G1: stale graphs launched",
        (GRAPHS,),
        "fragment.h",
        ("if (slots[segment.slots[k]].address != graph.frozen[k]) return false;", ""),
    ),
    of_streams(
        "G3: a slot settles in a home of its own fragment",
        (GRAPHS, "-k", "what_a_pass_leaves"),
        "epoch.h",
        (" || (graphs_ && lent && is_made_by(fragment, lent))) return false;", ") return false;"),
    ),
    of_streams(
        "G3: what was free becomes a home of its own fragment",
        (MEMORY,),
        "epoch.h",
        (
            "if (base != slot.address || lies_in_own_home(fragment, slot, tenancy_of(storage))) {",
            "if (base != slot.address) {",
        ),
    ),
    of_streams(
        "captures are free",
        (GRAPHS, "-k", "as_long_as"),
        "budget.h",
        ("if (!fragment.live && worth_.has_earned(fragment) && ", "if (!fragment.live && "),
    ),
    of_streams(
        "each fragment has to earn the first capture",
        ("tests/unit/test_streams_fragments.py", "-k", "all_fragments_together"),
        "worth.h",
        ("is_warm_ || earned_ >= price_ * COLD", "is_warm_"),
    ),
    of_streams(
        "the first capture costs no more than others",
        ("tests/unit/test_streams_fragments.py", "-k", "all_fragments_together"),
        "worth.h",
        ("is_warm_ || earned_ >= price_ * COLD", "true"),
    ),
    of_streams(
        "what runs as written to be compared is not counted",
        (GRAPHS, "-k", "slower_than_code_as_written"),
        "decider.h",
        ("if (laps_.doubted()) counts_.doubted++;", ""),
    ),
    of_streams(
        "what was never recorded counts as compared",
        (GRAPHS, "-k", "slower_than_code_as_written"),
        "decider.h",
        ("if (laps_.doubted()) counts_.doubted++;", "counts_.doubted++;"),
    ),
    of_streams(
        "what ran as written until it was recorded is not earned",
        ("tests/unit/test_streams_fragments.py", "-k", "is_earned"),
        "learner.h",
        ("if (!is_outer_) worth_.earn", "if (false) worth_.earn"),
    ),
    of_streams(
        "what operators take as written is not measured",
        (GRAPHS, "-k", "take_longer"),
        "pace.h",
        ("std::max(LEAST_NS, usual - COMPARED_NS)", "LEAST_NS"),
    ),
    of_streams(
        "captures without end",
        (GRAPHS, "-k", "never_stays"),
        "captures.h",
        ("if (++segment->captures > settings_.captures)", "if (false)"),
    ),
    of_streams(
        "nothing is doubted",
        (GRAPHS, "-k", "slower_than"),
        "laps.h",
        ("if (ratio <= Pace::WORTHWHILE)", "if (true)"),
    ),
    of_streams(
        "who lives in a home that is captured loses it",
        (GRAPHS, "-k", "captured_keeps"),
        "memory.h",
        (
            "occupant->set_data_ptr_noswap(std::move(memory_));",
            "occupant->set_data_ptr_noswap(device_.allocate(nbytes_));",
        ),
    ),
    of_streams(
        "a capture that fails is made again without end",
        (FAULTS, "-k", "memory_that_ends_in_a_capture"),
        "captures.h",
        ("else if (++segment.failed == 2)", "else if (false)"),
    ),
    *rows_of(
        "grape.streams.higher_order",
        ("tests/unit/test_streams_higher_order.py",),
        ("streams: operators that take functions have no kernel", "operator.fallthrough(key)", "pass"),
        (
            "streams: operators that take functions pass the key over for good",
            "operator.non_fallthrough_keys.add(key)",
            "operator.non_fallthrough_keys",
        ),
    ),
    *rows_of(
        "grape.streams.compiled.guarded",
        ("tests/unit/test_streams_guarded.py",),
        (
            "streams: guards of compiled functions meet the key",
            "if was_in and getattr(",
            "if False and getattr(",
        ),
        (
            "streams: graphs of compiled functions run without the key",
            "== _DISABLED and inside",
            "== _DISABLED and False",
        ),
        ("streams: functions that are compiled run without the key", " and not compiles()", ""),
        ("streams: the key stays away behind a compiled function", "if own.was_in:", "if False:"),
        ("streams: the key stays behind the graph of a compiled function", "if key.is_in():", "if False:"),
        ("streams: the key leaves before what is pending", "            self._flush()\n", "            pass\n"),
        ("streams: the key comes back in a pause", "include_key(self._serves())", "include_key(True)"),
        (
            "streams: an error at a compiled function takes the key",
            "                    key.enter()\n                    raise",
            "                    raise",
        ),
        ("streams: a stance for the person's code hides it", ' != "force_eager"', ' != "none"'),
    ),
    *rows_of(
        "grape.streams.captures",
        (PREPARATION,),
        ("cuBLAS is not made ready again where torch took its workspaces", "self._warm.clear()", "pass"),
        (
            "nobody has back what gives cuBLAS's workspaces back",
            "setattr(torch._C, _GIVE_BACK, self._give_back)",
            "pass",
        ),
        ("chunks are reserved where they are not cut", "return not 0 <= most <= CHUNK", "return True"),
        (
            "results that fit no chunk are reserved",
            "self._session.bytes_wanted(LARGEST)",
            "self._session.bytes_wanted(2 * CHUNK)",
        ),
    ),
)
