"""Several ranks: what they tell each other, what is compared, and when one of them is a straggler.

python scripts/mutation_table.py 'ranks'
"""

from __future__ import annotations

from .rows import rows_of

__all__ = ["ROWS"]

UNIT = "tests/unit/test_ranks.py"
RULE = "tests/unit/test_rules_gr601.py"

ROWS = (
    *rows_of(
        "grape.model.times.ranks",
        (UNIT,),
        ("ranks: collectives of one pass count each", "meetings[n].goes_on or ", ""),
        ("ranks: arrivals that no clock told are compared", "if not all(times[n] for times in at_ns):", "if False:"),
        ("ranks: what clocks make is somebody's", "if ms >= LEAST_LATE_MS:", "if ms >= 0:"),
    ),
    *rows_of(
        "grape.sessions.ranks.exchange",
        (UNIT,),
        ("ranks: a message of another run is taken", "if is_of_now(message):", "if True:"),
        ("ranks: a rank leaves all its keys", "if last is not None and last != key:", "if False:"),
        ("ranks: a silent store is asked again", " or self._asked == []", ""),
    ),
    *rows_of(
        "grape.sessions.ranks.beside",
        (UNIT,),
        ("ranks: groups of some of the ranks are compared", "    if parts:\n", "    if False:\n"),
        ("ranks: a run of any time is one of now", " >= began_s)", " >= 0)"),
    ),
    *rows_of(
        "grape.rewrite.starts",
        ("tests/unit/test_starts.py",),
        (
            "launched: a generator's spawn starts processes",
            "_last_name(call.func.value) in _ITS_MODULES",
            "True",
        ),
        ("launched: what a function calls is not looked at", "_MOST_STEPS = 4", "_MOST_STEPS = 1"),
        (
            "launched: whoever prepares data is a rank",
            "return bool(used & wanted) or _reaches(",
            "return True or _reaches(",
        ),
    ),
    *rows_of(
        "grape.sessions.launched.cell",
        ("tests/unit/test_launched_session.py",),
        ("launched: what the cell did itself is not told", "own is not None and own.evidence.torch_ran", "False"),
        ("launched: torch starts processes as it would", "        take_over(served", "        _ = (served"),
        (
            "launched: another rank's report is the cell's",
            "first = by_rank[min(by_rank)]",
            "first = by_rank[max(by_rank)]",
        ),
    ),
    *rows_of(
        "grape.advisor.rules.gr6xx.gr601",
        (RULE,),
        ("ranks: one of a few exchanges is enough", "_EXCHANGES = 4", "_EXCHANGES = 1"),
        ("ranks: whoever is late is a straggler", "_MOST = 2 / 3", "_MOST = 0"),
        ("ranks: any share is one", "_SHARE = 0.1", "_SHARE = 0"),
        ("ranks: any time is one", "_LEAST_MS = 5.0", "_LEAST_MS = 0.0"),
    ),
)
