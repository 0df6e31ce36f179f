"""On a GPU operator streams come first: when they do, when regions look, and what that leaves of what streams know.

python scripts/mutation_table.py 'streams first'
"""

from __future__ import annotations

from .rows import Row, compiled, rows_of

__all__ = ["ROWS"]

LEAD = "tests/unit/test_streams_lead.py"
CONTRACT = "tests/unit/test_streams_contract.py"
ISOLATION = "tests/unit/test_streams_isolation.py"


def _row(what: str, tests: tuple[str, ...], file: str, old: str, new: str) -> Row:
    return Row(f"streams first: {what}", compiled((file, old, new)), tests)


WHEN = rows_of(
    "grape.sessions.streamed.lead",
    (LEAD,),
    ("streams first: with --profile", "options.profile or ", ""),
    ("streams first: with --rewrite", "options.rewrite or ", ""),
    ("streams first: under a named engine", ' or engine_named(options.engine) != "auto"', ""),
    ("streams first: on the reference", "context.unhurried or ", ""),
    ("streams first: on a CPU", ' or context.backend.kind != "cuda"', ""),
    ("streams first: only on a GPU beside a process group, too", " and not (process_group() or started_as_rank())", ""),
    ("streams first: where something hinders them", "if hindrance(owner) is not None", "if False"),
    ("streams first: where no stream can be opened", "return shared.prepare() is None", "return True"),
    ("streams first: regions look at the second run", "led.runs >= FEWEST_RUNS and ", ""),
    ("streams first: regions look before runs are alike", "led.settled and ", ""),
    ("streams first: regions look at what trains", "not led.trains and ", ""),
    ("streams first: regions look before that is paid", "led.saved >= PAID and ", ""),
    ("streams first: regions look at short cells", " and led.wall_ms >= LONG_MS", ""),
    ("streams first: any share is enough to settle", "share >= MATCHED and ", ""),
    ("streams first: runs need not be alike", " and abs(share - led.matched) <= ALIKE", ""),
    ("streams first: what cannot be told is never timed again", "led.untold >= most_untold or ", ""),
    (
        "streams first: what gains nothing is never timed",
        " or is_due or",
        " or",
    ),
    (
        "streams first: a run that compares is held against them",
        "and _is_excused(found, time)",
        "and False",
    ),
    ("streams first: no run counts while it is compared", "not led.doubted and ", ""),
    (
        "streams first: one comparison is enough for no run to count",
        "share < DOUBTED or",
        "not share or",
    ),
    (
        "streams first: a comparison excuses a run however slow it was",
        "if share < DOUBTED or time.plain_ms is None",
        "if True",
    ),
    (
        "streams first: a run that captures is excused no more",
        "return time.wall_ms - time.own.capture_ms <=",
        "return time.wall_ms <=",
    ),
    ("streams first: what was compared excuses nothing by itself", " + share) * time", ") * time"),
    ("streams first: the first run is doubted", "led.runs >= WARM and not led.gains", "not led.gains"),
    ("streams first: what gains is doubted", "not led.gains and ", ""),
    ("streams first: what gains nothing is timed each time", " and not led.timed", ""),
    ("streams first: little saved counts as a gain", "share_saved >= SURE", "share_saved >= 0"),
    (
        "streams first: captures count against what was gained",
        "(plain_ms - later_ms) / plain_ms",
        "(plain_ms - time.wall_ms) / plain_ms",
    ),
    ("streams first: what is on its way is doubted", " or found.waiting >= MOST_WAIT * operators", ""),
    ("streams first: what made it slower goes on", "slower or (", "("),
    ("streams first: what made it no faster goes on", "streamed > (1 - SIGNIFICANT) * as_written", "False"),
    ("streams first: regions look at training that was refused", " and not now.trains", ""),
    ("streams first: regions look at short cells that were refused", " and later_ms >= SHORT_MS", ""),
    ("streams first: regions look at what streams gave up", "past, settled=True, runs=", "past, runs="),
    (
        "streams first: a cell without tensors is streamed for good",
        "refused is None and (found is None or not found.operators)",
        "False",
    ),
    ("streams first: the first run is judged, too", "plain_ms if led.runs else None", "plain_ms"),
    ("streams first: a run that makes graphs is timed", " or learning or found.waiting", " or found.waiting"),
    ("streams first: what makes graphs is timed as soon as others", "2 * UNTOLD if led.learns else UNTOLD", "UNTOLD"),
    ("streams first: what is still learned is given up for no gain", "not led.learns and ", ""),
    ("streams first: a run timed while it learns is the last", "timed=not past.led.learns", "timed=True"),
    ("streams first: only the first two runs capture much", "not led.invested and ", "False and "),
    ("streams first: what has made graphs may capture much", "not led.invested and ", ""),
    ("streams first: graphs of later runs are made few by few", " or learns or ", " or "),
    ("streams first: more is spent whatever it has cost", " and past.paid < most", ""),
    ("streams first: more is spent where nobody knows what it costs", "not led.untold and ", ""),
    ("streams first: more is spent without end", "led.runs < MOST_LEARNING and ", ""),
    ("streams first: any run may capture much", " and led.runs < YOUNG", ""),
    ("streams first: what matches little is not timed early", " or is_early(led)", ""),
    ("streams first: what matches is timed early", "led.matched < MATCHED and not led.clear", "not led.clear"),
    ("streams first: what clearly gains is timed early", " and not led.clear", ""),
    ("streams first: a gain is as clear however little matches", " * (1 - share)", ""),
    ("streams first: a run is timed early again and again", " and not led.early", ""),
    ("streams first: what never ends is timed early for ever", "gains=True, early=True", "gains=True"),
    (
        "streams first: what was paid before it was known is forgotten",
        "led=led, paid=min(paid, MOST_PAID / 2)",
        "led=led",
    ),
    ("streams first: what learns is given up for one run", "min(paid, MOST_PAID / 2)", "paid"),
    ("streams first: what cost much in its first run makes no graphs", "MOST_PAID if led.early else ", ""),
    ("streams first: regions look at shapes that grow", "not led.grows and ", ""),
)

AFTERWARDS = rows_of(
    "grape.sessions.streamed.judged",
    (LEAD,),
    ("streams first: regions never look at what streams gave up", "past.led is not None or ", ""),
)

NOTHING = rows_of(
    "grape.streams.keeper",
    ("tests/integration/test_streams_in_cells.py", "-k", "serves_no_plain_cell"),
    (
        "streams first: plain cells are served by what knows nothing",
        "counts().fragments > 0",
        "counts().fragments >= 0",
    ),
)

JUDGED = rows_of(
    "grape.sessions.streamed.judged",
    ("tests/unit/test_judged.py",),
    ("streams judged: runs that make graphs are lost", "captured or rested or", "rested or"),
    ("streams judged: runs that put graphs off are lost", "captured or rested or", "captured or"),
    ("streams judged: graphs are made for ever", " and past.learning < MOST_LEARNING", ""),
    ("streams judged: to make graphs may cost anything", "MOST_LOST if slower and paid > MOST_PAID else 0", "0"),
    ("streams judged: a run that is not slower is the last", "if slower and paid", "if paid"),
    ("streams judged: one slow run is as many", "- 1), MOST_PAID / 2)", "- 1), MOST_PAID)"),
)

EXPOSED = (
    _row(
        "addresses that Grape asks for in a pause expose",
        (ISOLATION, "-k", "who_asks"),
        "readers.h",
        " && !(engine->is_paused() && asked_by_grape())",
        "",
    ),
    _row(
        "addresses that anybody asks for in a pause expose nothing",
        (ISOLATION, "-k", "who_asks"),
        "readers.h",
        "engine->is_paused() && asked_by_grape()",
        "engine->is_paused()",
    ),
    _row(
        "addresses that Grape asks for beside a stream expose nothing",
        (ISOLATION, "-k", "who_asks"),
        "readers.h",
        "engine->is_paused() && asked_by_grape()",
        "asked_by_grape()",
    ),
)

SERVED = (
    _row(
        "what comes behind the longest fragment is not recorded",
        (CONTRACT, "-k", "behind_the_longest"),
        "decider.h",
        " learner_.go_on(fragment, context);",
        " {}",
    ),
)

THREADS = rows_of(
    "grape.streams.threads",
    (ISOLATION, "-k", "ran_before or began_before"),
    (
        "streams: tasks in threads that ran before carry no key",
        "    for kind, name in _TASKS:",
        "    for kind, name in ():",
    ),
    ("streams: threads of pools run no operators", "multiprocessing.pool.__file__ in files or ", ""),
    ("streams: executors are always idle", "frame.f_code is _SERVES", "not thread.daemon"),
)

ROWS = (*WHEN, *AFTERWARDS, *NOTHING, *JUDGED, *EXPOSED, *SERVED, *THREADS)
