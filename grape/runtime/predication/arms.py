"""Which bodies a replay ran: what was compared with an eager run, and what was not yet; whether assertions held.

A graph holds every branch, but the eager call that it was compared with took one way. So each body leaves a mark when
it runs, in memory that every replay clears first; a replay that ran a body which no compared replay has run is not
used. Two marks stand for each decision, for running its body and for skipping it. Once each was seen in a compared
replay, the marks are not read any more, and nobody waits for the device.
"""

from __future__ import annotations

import torch

from .lowering.active import refuse

_LIMIT = 4096


class Arms:
    """Marks of one capture. `clear` and `new` are called while it is recorded; `known` waits for the device.

    `program` is equal for captures that recorded the same; set it before `join`.
    """

    def __init__(self, device: torch.device) -> None:
        with torch.inference_mode(False):
            self.marks = torch.zeros(_LIMIT + 1, dtype=torch.bool, device=device)
            self._bytes = self.marks.view(torch.uint8)
            self._one = torch.ones((), dtype=torch.uint8, device=device)
            self.failed = self.marks[_LIMIT]
            """True where an assertion failed in the last replay."""
        self.count = 0
        self._repeated: list[int] = []
        self.program: object = None
        self._compared: set[tuple[int, int]] = set()

    def clear(self) -> None:
        self.marks.zero_()

    def new(self) -> torch.Tensor:
        """The place of one more mark, to be written where a body runs."""
        if self.count == _LIMIT:
            raise refuse(f"more than {_LIMIT // 2} decisions")
        self.count += 1
        return self.marks[self.count - 1]

    def iteration(self) -> None:
        """An iteration of a loop runs here: told from a second one, which alone sees what the first handed on.

        One kernel, for it runs in each iteration: 0 becomes 1, 3, 7 and so on up to 255, which stays.
        """
        self.new()
        self._repeated.append(self.count - 1)
        place = self._bytes[self.count - 1]
        torch.add(self._one, place, alpha=2, out=place)

    def join(self, other: Arms) -> None:
        """Count what was compared for one of two captures of the same program for both."""
        if other.program == self.program and other.count == self.count:
            other._compared |= self._compared
            self._compared = other._compared

    def learn(self) -> None:
        """The last replay was compared, and was right."""
        self._compared |= self._ran()

    @property
    def complete(self) -> bool:
        """True where every body was run, and skipped, by a compared replay."""
        return len(self._compared) == self.count + len(self._repeated)

    def known(self) -> bool:
        """True where compared replays ran every body that the last replay ran. Waits for the device."""
        return self.complete or self._ran() <= self._compared

    def _ran(self) -> set[tuple[int, int]]:
        """Numbers of marks, with how often each was reached: once, or once and again."""
        marks = self._bytes[: self.count].tolist()
        ran = {(number, 1) for number, mark in enumerate(marks) if mark}
        return ran | {(number, 2) for number in self._repeated if marks[number] > 1}
