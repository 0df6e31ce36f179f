"""Names of a region's arguments, as the person has them.

Evidence names an argument by its path from the call: ``args[0][1]`` is the second positional one, ``args[1]['past']``
the keyword `past`, and what follows leads to a tensor inside it. After the call they follow what it returned:
``result[0]`` is that, ``result[1]`` and ``result[2]`` are positional arguments and keywords.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..model import CellEvidence, Position, RegionEvidence
from .calls import CallSite, call_sites, parameters
from .code.source import cell_source

_PATH = re.compile(r"args\[(?:0\]\[(?P<index>\d+)|1\]\['(?P<keyword>\w+)')\](?P<rest>.*)", re.DOTALL)
_RESULT = re.compile(r"result\[(?P<part>[012])\](?P<rest>.*)", re.DOTALL)
_ORDINALS = ("first", "second", "third", "fourth", "fifth")


class Arguments:
    """Names for the arguments of one region: as its one call in the cell has them, else those of its definition."""

    def __init__(self, evidence: CellEvidence, region: RegionEvidence) -> None:
        source, callee = cell_source(evidence), _callee(region.name)
        sites = call_sites(source, callee)
        self._site: CallSite | None = sites[0] if len(sites) == 1 else None
        self.called_here = bool(sites)
        """False where the cell itself does not call the region: a library does, or a function of another cell."""
        self._method = "." in region.name.rpartition("<locals>.")[2].split(" ")[0]
        self._parameters = parameters(source, region.at, callee)

    @property
    def called_at(self) -> Position | None:
        """The line of the one call in the cell; None where there are several or none."""
        return self._site.at if self._site is not None else None

    def name(self, path: str) -> str:
        """A name to stand in a sentence: code in backticks, or "the second argument"."""
        returned = _RESULT.fullmatch(path)
        if returned is not None and returned["part"] == "0":
            rest = returned["rest"].lstrip(".")
            return f"`{rest}` of what it returns" if rest else "what it returns"
        match = _PATH.fullmatch(path if returned is None else f"args[{int(returned['part']) - 1}]{returned['rest']}")
        if match is None:
            return f"`{path}`"
        keyword, rest = match["keyword"], match["rest"]
        if keyword is not None:
            return f"`{keyword}{rest}`"
        index = int(match["index"])
        written = self._written(index)
        if written and (not rest or written.isidentifier()):
            return f"`{written}{rest}`"
        if index < len(self._parameters):
            return f"`{self._parameters[index]}{rest}`"
        number = index - self._method
        if number < 0:
            return f"`self{rest}`"
        ordinal = _ORDINALS[number] if 0 <= number < len(_ORDINALS) else f"{number + 1}th"
        return f"`{rest.lstrip('.')}` of the {ordinal} argument" if rest else f"the {ordinal} argument"

    def of_self(self, path: str) -> bool:
        """True for a tensor that the object keeps whose method is called: nobody passes it."""
        return self.name(path).startswith("`self.")

    def listed(self, paths: Sequence[str]) -> str:
        """The first two names and how many more there are."""
        head = [self.name(path) for path in paths[:2]]
        more = len(paths) - len(head)
        return f"{', '.join(head)} and {more} more" if more else " and ".join(head)

    def fed_back(self, path: str) -> bool:
        """True where a loop of the cell passes what the call before returned: ``h = step(x, h)``."""
        match, site = _PATH.fullmatch(path), self._site
        if match is None or site is None:
            return False
        if match["keyword"] is not None:
            return dict(site.keywords).get(match["keyword"]) in site.carried
        return self._written(int(match["index"])) in site.carried

    def _written(self, index: int) -> str | None:
        """The positional argument as it stands in the call; None where that is not known or too long."""
        number = index - self._method
        if self._site is None or self._site.starred or not 0 <= number < len(self._site.arguments):
            return None
        return self._site.arguments[number] or None


def _callee(name: str) -> str:
    """The name that the person calls: the variable in "GPT2LMHeadModel (model)", the last part of a qualified name."""
    name = re.sub(r" #\d+$", "", name)
    variable = re.fullmatch(r".* \((\w+)\)", name)
    return variable[1] if variable else name.rpartition(".")[2]
