"""Which rewrites a cell runs with at once: what its source shows, and what was compared in an earlier run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from ..advisor import advise_sources
from ..model import Finding
from ..rewrite.at_once import FROM_SOURCE, VERIFIED, RewrittenCell, fix_all
from ..rewrite.result import Declined
from ..rewrite.source import mask, names_bound, names_in_functions


class Offers:
    """Fixes that were compared and offered, by the source of the cell with its magic line masked."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Finding, ...]] = {}

    def clear(self) -> None:
        self._known.clear()

    def of(self, source: str) -> tuple[Finding, ...]:
        return self._known.get(_key(source), ())

    def learn(self, source: str, findings: Iterable[Finding], file: str) -> None:
        """Keep those of `findings` about the cell `file` whose rewrite computed the same, beside those known before."""
        key = _key(source)
        known = self._known.get(key, ())
        places = {_place(finding) for finding in known}
        new = [finding for finding in findings if _may_run(finding, file) and _place(finding) not in places]
        if new:
            self._known[key] = (*known, *new)


def rewritten_cell(
    source: str, file: str, offered: Collection[Finding], *, others: Sequence[tuple[str, str]] = ()
) -> RewrittenCell | None:
    """The source that runs in the place of `source`, the cell `file`; None where no rewrite is known, or every one is
    refused.

    `others` are (name, source) of the person's code that ran before.
    """
    known = {_place(finding) for finding in offered}
    here = (file, source)
    # Other cells say what a name is, or use a name of this cell for something else.
    bound = _bound(source)
    apart = [one for one in others if not bound & _bound(one[1])]
    found = {
        _place(one): _in_its_function(one)
        for sources in ([here], [*apart, here], [*others, here])
        for one in advise_sources(sources)
        if one.at is not None and one.at.file == file and one.code in FROM_SOURCE
    }
    elsewhere: frozenset[str] = frozenset().union(*(names_in_functions(text) for _, text in others))
    chosen = [*(_here(finding, file) for finding in offered), *(found[place] for place in found if place not in known)]
    made = fix_all(source, chosen, elsewhere=elsewhere)
    return made if made.applied else None


def _bound(source: str) -> frozenset[str]:
    """The names that a cell assigns at its top."""
    masked = mask(source)
    return frozenset() if isinstance(masked, Declined) else names_bound(masked.text, imports=False)


def _key(source: str) -> str:
    masked = mask(source)
    return source if isinstance(masked, Declined) else masked.text


def _place(finding: Finding) -> tuple[str, int | None]:
    return finding.code, finding.at.line if finding.at is not None else None


def _here(finding: Finding, file: str) -> Finding:
    return replace(finding, at=replace(finding.at, file=file)) if finding.at is not None else finding


def _may_run(finding: Finding, file: str) -> bool:
    """True where a verified rewrite may run at once. What was seen of shapes belongs to one run and may be otherwise in
    the next, so it does not count.
    """
    compared = finding.fix is not None and finding.fix.verified
    of_cell = finding.at is not None and finding.at.file == file
    return compared and of_cell and finding.code in VERIFIED and "operand_shapes" not in dict(finding.evidence)


def _in_its_function(finding: Finding) -> Finding:
    """Seen in the source of a function: what calls it often enough makes a region of it."""
    inside = finding.at is not None and finding.at.function not in ("", "<module>")
    return replace(finding, region=finding.at.function) if inside and finding.at is not None else finding
