"""On a GPU operator streams come first. Regions, which skip the Python as well, look at a run of a cell once streams
have settled in it and have saved more than that costs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...model import LEAST_MS, SIGNIFICANT, CellEvidence, CellTime, Finding, StreamEvidence
from ...model.stream import GROWS
from ...options import Options, engine_named
from ...render.units import waited_pair
from ...streams import shared
from ..past.history import CellKey, Led, Past
from .by_streams import hindrance
from .judged import MOST_LEARNING, MOST_PAID, MOST_WAIT, after_streamed_run, is_learning, without_streams

if TYPE_CHECKING:
    from ..engine import Engine

NOTHING = "no operator of it ran on the GPU"
FEWEST_RUNS = 3
"""That streams served, before regions look: the first records and captures; two that are alike tell what it gave."""
MATCHED = 0.7
"""Of a cell's operators; where fewer match, something in it needs the host, and regions would be stopped by that."""
GROWING = 0.01
"""Of a cell's operators: those whose sizes grow, where each round has a shape that no other had. A look at 1,000 tokens
of a Llama took 19 s, where streams took 5.4, and captured nothing that came again."""
ALIKE = 0.05
"""Two runs in which shares that differ by no more matched are alike."""
UNTOLD = 2
"""Runs in a row of which streams cannot tell what they save, after which one is timed as written, each time. Twice as
many while graphs are made: they may cost a multiple, and nobody would know."""
SURE = 0.15
"""Of the plain cell, by the estimate: of 27 public programs on an H200 three became 7 to 23% slower under streams, and
estimates, off by 7% in the median, told of no loss. What saves less is timed as written, once.
"""
CLEAR = 0.3
"""The same while little of it matches, of what does not: estimates contain most of what it takes to look at that."""
DOUBTED = 0.05
"""Of a cell's operators, that ran as written to see what deferring them saves: such a run tells nothing of the next
unless it had been slower if they had cost nothing, and every other one counts. Longformer took 0.57, 0.65 and 0.38 of
its plain time, and then, compared, 1.09 and 0.89.
"""
WARM = 2
"""The first run that tells what later ones will be like; until then more may be spent on captures."""
YOUNG = 4
"""The same until the first run in which graphs could be made: so many runs at most."""
LONG_MS = 5000.0
"""Of a cell under streams, for which a look may pay: to capture what regions find took 2.5 s for a model of 12 layers,
in a run that goes without streams, and saved half of what the cell took under them.
"""
SHORT_MS = 1000.0
"""Of a cell that streams cannot serve: regions do not look at a shorter one. A look takes up to half a second, and its
allowance ends before anything is captured: DeBERTa took 0.54 and 0.60 s in two of them, and 0.21 s as written.
"""
PAID = 0.5
"""What streams have saved so far, as a share of the plain cell: a run that regions look at goes without them."""


def leads(owner: Engine, options: Options) -> bool:
    """True where streams would serve a cell of which nothing is known. Beside a process group regions serve none."""
    from ...tracing import process_group, started_as_rank

    if options.profile or options.rewrite or engine_named(options.engine) != "auto":
        return False
    context = owner.context
    if hindrance(owner) is not None:
        return False
    if (context.unhurried or context.backend.kind != "cuda") and not (process_group() or started_as_rank()):
        return False
    return shared.prepare() is None


def is_young(owner: Engine, place: CellKey | tuple[str, int], past: Past | None) -> bool:
    """True in runs that are still learnt from, in which more may be spent: the first ones, and those after a run in
    which graphs were made, while all of them have cost little, as far as is known.
    """
    if past is not None and past.led is not None and past.streamed:
        led = past.led
        most = MOST_PAID if led.early else MOST_PAID / 2
        learns = led.learns and not led.untold and led.runs < MOST_LEARNING and past.paid < most
        return led.runs < WARM or learns or (not led.invested and led.runs < YOUNG)
    if past is not None:
        return not past.streamed
    return (runs := owner.runs.get(place)) is None or runs.count < WARM


def has_to_be_timed(past: Past | None) -> bool:
    """True where the next run goes as written, as it is in doubt that streams make the cell faster."""
    led = past.led if past is not None else None
    if led is None:
        return False
    most_untold = 2 * UNTOLD if led.learns else UNTOLD
    is_due = led.runs >= WARM and not led.gains and not led.timed
    return led.untold >= most_untold or is_due or is_early(led)


def is_early(led: Led) -> bool:
    """True where a warm run served little and later ones will serve more. To look on takes a third of training that
    waits for the host, and estimates see the lesser part of it: how long such a cell may learn has to be decided by
    what it takes as written (decision 038).
    """
    return led.learns and led.runs >= WARM and led.matched < MATCHED and not led.clear and not led.early


def may_be_looked_at(led: Led) -> bool:
    """True where regions may look at the next run. Training, which backward passes tell of, they rarely serve."""
    paid = led.saved >= PAID and led.wall_ms >= LONG_MS
    return led.runs >= FEWEST_RUNS and led.settled and not led.trains and not led.grows and paid


def after_led_run(
    past: Past | None,
    *,
    evidence: CellEvidence,
    findings: tuple[Finding, ...],
    found: StreamEvidence | None,
    time: CellTime,
    options: Options,
    refused: str | None = None,
) -> Past:
    """The past after a run that streams served, or were to serve: `found` is None where they could not, and `refused`
    says why. A cell without an operator for the GPU is left as written.
    """
    led = past.led if past is not None and past.led is not None else Led()
    new = Past(runs=0, settled=False, served=False, evidence=evidence, findings=findings, applied=options.applied)
    before = replace(past or new, evidence=evidence, findings=findings, led=led)
    if refused is None and (found is None or not found.operators):
        return replace(without_streams(before, NOTHING, again=False), led=None, runs=max(1, before.runs))
    operators, matched = (found.operators, found.matched) if found is not None else (1, 0)
    if found is not None and led.runs >= WARM and not led.doubted and _is_excused(found, time):
        return replace(before, led=replace(led, runs=led.runs + 1, doubted=True))
    share = matched / operators if operators else 0.0
    saved = (time.plain_ms - time.wall_ms) / time.plain_ms if time.plain_ms else 0.0
    later_ms = time.wall_ms - time.own.capture_ms  # what is captured now serves later runs as well
    plain_ms, made = time.plain_ms, {"operators": operators, "waiting": 0, "captured": 0, "rested": 0}
    if found is not None:
        made |= {"waiting": found.waiting, "captured": found.captured, "rested": found.rested}
    learning = is_learning(before, **made)
    gains = found is None or learning or found.waiting >= MOST_WAIT * operators
    share_saved = (plain_ms - later_ms) / plain_ms if plain_ms else 0.0
    gains = gains or share_saved >= SURE
    now = Led(
        runs=led.runs + 1,
        matched=share,
        settled=share >= MATCHED and abs(share - led.matched) <= ALIKE,
        saved=led.saved + saved,
        trains=led.trains or (found is not None and found.backwards > 0),
        untold=led.untold + 1 if found is not None and plain_ms is None else 0,
        wall_ms=later_ms,
        gains=gains,
        clear=share_saved >= CLEAR * (1 - share),
        learns=learning,
        invested=led.invested or made["captured"] > 0,
        timed=led.timed,
        early=led.early,
        grows=found is not None and dict(found.as_written).get(GROWS, 0) >= GROWING * operators,
    )
    after = after_streamed_run(
        replace(before, led=now),
        matched=matched,
        segments=found.segments if found is not None else 0,
        wall_ms=time.wall_ms,
        plain_ms=plain_ms if led.runs else None,  # the first run is cold
        **made,
    )
    if after.streamless is None:
        return replace(after, led=now)
    why = after.streamless if refused is None else f"operator streams do not serve it: {refused}"
    if refused is not None and not now.trains and later_ms >= SHORT_MS:  # regions, which rarely serve training, look
        return replace(after, led=None, streamless=why)
    return _as_written(after, why)


def after_timed_run(past: Past, time: CellTime | None) -> Past:
    """The past after a run as written that tells whether streams, in the run before it, made the cell faster. None: it
    was cut short, and streams go on, or a cell that is never let end would be without.
    """
    assert past.led is not None
    if time is None:
        return replace(past, led=replace(past.led, untold=0, gains=True, early=True))
    early = is_early(past.led)
    led = replace(past.led, untold=0, timed=not past.led.learns, early=past.led.early or early)
    as_written, streamed = time.wall_ms, led.wall_ms
    if early and as_written:
        paid = past.paid + max(0.0, (streamed - LEAST_MS) / as_written - 1)
        return replace(past, led=led, paid=min(paid, MOST_PAID / 2))
    slower = streamed > (1 + SIGNIFICANT) * as_written + LEAST_MS
    if slower or (not led.learns and streamed > (1 - SIGNIFICANT) * as_written):
        pair = waited_pair(as_written, streamed)
        why = f"operator streams made it {'slower' if slower else 'no faster'} ({pair})"
        return _as_written(without_streams(past, why, again=False), why)
    return replace(past, led=led)


def _is_excused(found: StreamEvidence, time: CellTime) -> bool:
    """True of a run that may have been slow for what ran as written in it, to be compared."""
    share = found.doubted / found.operators if found.operators else 0.0
    if share < DOUBTED or time.plain_ms is None:
        return share >= DOUBTED
    return time.wall_ms - time.own.capture_ms <= (1 + SIGNIFICANT + share) * time.plain_ms + LEAST_MS


def _as_written(past: Past, why: str) -> Past:
    """Streams serve the cell no more, and regions do not look at it: where operators do not repeat, or cost nothing, a
    look costs more than it can find (decision 030).
    """
    return replace(past, settled=True, runs=max(1, past.runs), why=why, led=None, streamless=why)
