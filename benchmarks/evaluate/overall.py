"""What the page says of all rows together: what was measured, the means, and how large the noise is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from .columns import ABLATIONS, COLUMNS
from .figures import (
    AS_WRITTEN,
    FASTER,
    NOISE,
    ONE_RUN,
    SLOWER,
    SLOWER_BY_RANGE,
    Found,
    call,
    first_ratio,
    is_behind,
    is_broken,
    is_left_as_written,
    noise,
    ratio,
    spread,
    timed_runs,
    whole_ratio,
    worst_later_ratio,
)
from .rows import GROUPS
from .tables import APART, GRAPES, NOTHING, PEERS, apart_from, by_row, markdown, prose, share, times

__all__ = [
    "CALLS",
    "METHOD",
    "attempts",
    "by_group",
    "columns_measured",
    "coverage",
    "duration",
    "machines",
    "noise_said",
    "same_bits",
    "summary",
]

CALLS = (FASTER, SLOWER_BY_RANGE, NOISE, AS_WRITTEN, ONE_RUN)
METHOD = prose(
    "Weights are random, algorithms of cuDNN deterministic, and dropout is 0 in rows that train, in the attention of",
    "Wav2Vec2 apart. Every run has the same inputs and begins with the same weights; rows that have no length of their",
    "own feed the same few tensors again and again until a run takes about 0.4 s. Timed runs take turns, always eager",
    "first and the column after it.",
)
SUMMARY_SAYS = prose(
    "A ratio is the median eager run over the median run of the column, a mean is geometric over rows; behind it",
    "the quartiles, and the least and the greatest. A run's step is the mean of its steps. Faster and slower: no",
    "run of one side reaches into the range of the other, where eager's range has the runs before the column was",
    "prepared, too; else it is within noise. Left as written: Grape's last report says so, and the ratio is eager's",
    "over eager's; means hold it as it was measured where they don't say otherwise. A settled run is the median of",
    "the timed ones, reports included, which a step does not contain; first runs contain reports, captures and",
    "compilation, and stand over the median of all eager runs. Fails: the column cannot run the row as it is",
    "written, ends with an error, or not in time. The row fails: it does in its plain runs, before the column is",
    "prepared.",
)
PEERS_SAY = prose(
    "Training by hand differs in the last bits where the optimizer counts its steps on the device, and compiled code",
    "where it fuses.",
)


def _recorded(found: Sequence[Found], key: str, say: str) -> str | None:
    values = sorted({str(value) for one in found if (value := one.get("machine", {}).get(key)) is not None})
    return say.format(" and ".join(values)) if values else None


def machines(found: Sequence[Found]) -> str:
    told = Counter(
        ", ".join(
            f"{before}{machine[key]}{behind}"
            for before, key, behind in (
                *(("", "gpu", ""), ("driver ", "driver", ""), ("torch ", "torch", ""), ("Python ", "python", "")),
                *(("", "cpus", " CPUs"), ("", "cpu", "")),
            )
            if machine.get(key)
        )
        for one in found
        if (machine := one.get("machine")) and one["outcome"] == "measured"
    )
    if not told:
        return NOTHING
    said = "; ".join(f"{where} ({count} pairs)" for where, count in told.most_common())
    more = {
        "the CPU's model": _recorded(found, "cpu", "{}"),
        "pairs at a time": _recorded(found, "workers", "pairs at a time: {}"),
        "date": _recorded(found, "date", "date: {}"),
    }
    known = [value for key, value in more.items() if value and key != "the CPU's model"]
    lacking = [key for key, value in more.items() if not value]
    return prose(
        f"Measured on {'; '.join([said, *known])}.", *([f"Not recorded: {', '.join(lacking)}."] if lacking else [])
    )


def columns_measured(found: Sequence[Found]) -> str:
    there = {one["column"] for one in found if one["outcome"] == "measured"}
    have = [column.what for name, column in COLUMNS.items() if name in there]
    lack = [column.what for name, column in COLUMNS.items() if name not in there and name not in ABLATIONS]
    peers = "" if there & set(PEERS) else " No peer was measured: every ratio is over eager, and says nothing of these."
    return prose(
        f"Columns measured: {'; '.join(have) or 'none'}.",
        *([f"Not measured: {'; '.join(lack)}.{peers}"] if lack else []),
        "Figures that others published stand beside rows where they have some; they are over another baseline, on",
        "other GPUs and other versions, and cannot be set beside these ratios.",
    )


def coverage(found: Sequence[Found]) -> str:
    """How many of the rows were measured under Grape, and the names of those that were not."""
    have = {one["row"]: one for one in found if one["column"] == "grape"}
    rows = [row for group in GROUPS if group.name not in APART for row in group.rows]
    usual = [row.name for row in rows if not row.long or row.name in have]
    measured = [name for name in usual if name in have and have[name]["outcome"] == "measured"]
    missing: dict[str, list[str]] = {}
    for name in usual:
        if name not in measured:
            missing.setdefault(str(have[name]["outcome"]) if name in have else "not run", []).append(name)
    said = [f"{why}: {', '.join(names)}" for why, names in missing.items()]
    long = [row.name for row in rows if row.long and row.name not in have]
    apart = [f"{group.title} ({len(group.rows)})" for group in GROUPS if group.name in APART and group.rows]
    absent = [
        title
        for group, title in zip([one for one in GROUPS if one.name in APART and one.rows], apart, strict=True)
        if not any(row.name in have for row in group.rows)
    ]
    return prose(
        f"Under Grape as shipped, {len(measured)} of {len(usual)} rows were measured.",
        f"The others: {'; '.join(said)}." if said else "",
        f"Beside these, rows that run only where they are named were not run: {', '.join(long)}." if long else "",
        f"Groups of which no row was run: {', '.join(absent)}." if absent else "",
    )


def duration(found: Sequence[Found]) -> str | None:
    """What the pairs took, one after the other, and which of them."""
    took: Counter[str] = Counter()
    for one in found:
        took[one["column"]] += one.get("took_s", 0.0)
    compiling = sum(took[name] for name in ("compiled", "reduce_overhead", "dynamic", "over_compiled"))
    if not (whole := sum(took.values())):
        return None
    return prose(
        f"One after the other all pairs take {whole / 3600:.1f} hours of a GPU,",
        f"of these {compiling / 3600:.1f} columns that compile, and {took['grape'] / 3600:.1f} Grape as shipped;",
        "`--workers N` divides that by the GPUs of a machine.",
    )


def noise_said(found: Sequence[Found]) -> str | None:
    mine = [one for one in apart_from(found) if one["column"] == "grape"]
    known = noise(mine)
    if known is None:
        return None
    counts = Counter(timed_runs(one) for one in mine if one["outcome"] == "measured")
    written = known.as_written
    return prose(
        "Noise, eager against eager: the slowest of a row's eager steps beside Grape is",
        f"{known.within.middle:.2f} times the fastest in the mean, at most {known.within.most:.2f} times;",
        f"eager steps before Grape was loaded are {known.before} of those beside it;",
        f"the {written.n} rows left as written are {written}." if written else "no row was left as written.",
        f"Timed runs of a row: {_counted(counts)}.",
    )


def _counted(counts: Counter[int]) -> str:
    return ", ".join(f"{n} in {count} {'row' if count == 1 else 'rows'}" for n, count in sorted(counts.items())[::-1])


def attempts(rows: dict[str, dict[str, Found]], name: str) -> list[Found]:
    mine = [row[name] for row in rows.values() if name in row]
    return [one for one in mine if one["outcome"] not in ("not installed", "the row fails", "unfinished")]


def summary(found: Sequence[Found]) -> str:
    rows = by_row(found, APART)
    table = [("", "rows", *CALLS, "fails", "same bits")]
    means = [("over eager", "a step", "a step, not left as written", "a settled run", "a first run")]
    ends = [("against eager", "first run slower by more than 3%", "worst first run", "worst later run")]
    for name in (*GRAPES[:1], *PEERS, *GRAPES[1:]):
        tried = attempts(rows, name)
        if not tried:
            continue
        measured = [one for one in tried if one["outcome"] == "measured"]
        calls = Counter(AS_WRITTEN if is_left_as_written(one) else call(one) for one in measured)
        what = COLUMNS[name].what
        table.append(
            (
                *(what, str(len(tried))),
                *(str(calls[one]) for one in CALLS),
                share(sum(map(is_broken, tried)), len(tried)),
                same_bits(measured),
            )
        )
        served = [one for one in measured if not is_left_as_written(one)]
        firsts = [value for one in measured if (value := first_ratio(one)) is not None]
        middles = _mean(ratio, measured), _mean(ratio, served), _mean(whole_ratio, measured)
        means.append((what, *middles, _mean(first_ratio, measured)))
        ends.append(
            (
                what,
                share(sum(value < SLOWER for value in firsts), len(firsts)),
                _worst(measured, first_ratio),
                _worst(measured, worst_later_ratio),
            )
        )
    if len(table) == 1:
        return NOTHING
    parts = [markdown(table), markdown(means), markdown(ends)]
    against = _against(rows)
    return "\n\n".join([*parts, markdown(against), PEERS_SAY] if len(against) > 1 else parts)


def _mean(figure: Callable[[Found], float | None], found: Sequence[Found]) -> str:
    return str(spread(map(figure, found)) or "-")


def _worst(found: Sequence[Found], figure: Callable[[Found], float | None]) -> str:
    known = [(value, one["row"]) for one in found if (value := figure(one)) is not None]
    if not known:
        return "-"
    value, row = min(known)
    return f"{times(value)} ({row})"


def same_bits(measured: Sequence[Found]) -> str:
    """Of rows whose eager runs leave the same bits each time; others cannot be compared so."""
    known = [one for one in measured if "agreement" in one]
    repeatable = [one for one in known if one.get("repeatable", True)]
    same = sum(one["agreement"]["identical"] for one in repeatable)
    others = len(known) - len(repeatable)
    beside = f"; eager differs from itself in {others} more" if others else ""
    return f"{same} of {len(repeatable)} repeatable rows{beside}" if known else "-"


def _against(rows: dict[str, dict[str, Found]]) -> list[tuple[str, ...]]:
    table: list[tuple[str, ...]] = [
        (
            "Grape as shipped, on the rows that both ran",
            "rows",
            "a step",
            "a settled run",
            "steps slower, beyond the ranges",
        )
    ]
    for name in PEERS:
        pairs = [(row["grape"], row[name]) for row in rows.values() if "grape" in row and name in row]
        sides = [(ratio(mine), ratio(theirs)) for mine, theirs in pairs]
        both = [mine / theirs for mine, theirs in sides if mine and theirs]
        whole = [(whole_ratio(mine), whole_ratio(theirs)) for mine, theirs in pairs]
        wholes = [mine / theirs for mine, theirs in whole if mine and theirs]
        if both:
            known = [pair for pair, (left, right) in zip(pairs, sides, strict=True) if left and right]
            slower = share(sum(is_behind(*pair) for pair in known), len(known))
            what = f"over {COLUMNS[name].what}"
            table.append((what, str(len(both)), str(spread(both)), str(spread(wholes)), slower))
    return table


def by_group(found: Sequence[Found]) -> str | None:
    """Geometric means of Grape as shipped, a group a line."""
    table = [("Grape as shipped, by group", "measured", AS_WRITTEN, "a step", "a settled run", "a first run")]
    for group in GROUPS:
        mine = [one for one in found if one["group"] == group.name and one["column"] == "grape"]
        measured = [one for one in mine if one["outcome"] == "measured"]
        if group.name in APART:
            continue
        usual = [row for row in group.rows if not row.long or any(one["row"] == row.name for one in mine)]
        table.append(
            (
                group.title,
                f"{len(measured)} of {len(usual)}",
                str(sum(map(is_left_as_written, measured))),
                *(_mean(figure, measured) for figure in (ratio, whole_ratio, first_ratio)),
            )
        )
    return markdown(table) if any(one["column"] == "grape" for one in apart_from(found)) else None
