"""Where in the person's code operators of a stream run as written, as numbers that the engine keeps."""

from __future__ import annotations

from types import FrameType

from ..model import Position
from ..tracing import PositionFinder, remember_group

Place = tuple[Position | None, Position | None]
"""The innermost line of the person's own code, and the innermost of all outside Grape; None where there is none."""

_Line = tuple[str, int, str] | None
_MOST = 10_000
"""Places kept at once; what others would be is nobody's."""


class Places:
    """Of one stream. Place 0 is nobody's."""

    def __init__(self) -> None:
        self._find = PositionFinder().find
        self._numbers: dict[tuple[_Line, _Line], int] = {(None, None): 0}
        self._places: list[Place] = [(None, None)]

    def here(self) -> int:
        """The number of the place that this is called from. A thread of autograd's own has none."""
        user, inner = self._find()
        line = _line(user)
        place = line, line if inner is user else _line(inner)
        known = self._numbers.get(place)
        if known is None:
            if len(self._places) == _MOST:
                return 0
            known = self._numbers[place] = len(self._places)
            self._places.append((_position(place[0]), _position(place[1])))
        return known

    def meet(self) -> int:
        """The same at a collective, whose process group may be gone at the end of the run."""
        remember_group()
        return self.here()

    def of(self, number: int) -> Place:
        return self._places[number]


def _line(frame: FrameType | None) -> _Line:
    if frame is None:
        return None
    code = frame.f_code
    return code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_qualname


def _position(line: _Line) -> Position | None:
    return None if line is None else Position(file=line[0], line=line[1], function=line[2])
