"""One line of the doctor's page, and versions as numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of a check. `ok` is None where the thing is optional and absent, untested, or does not apply here.

    `needs` says what to do about it, with the command where one helps; `effect` what follows until then, and what
    still works. Both are empty where there is nothing to say.
    """

    name: str
    ok: bool | None
    found: str
    needs: str = ""
    effect: str = ""


def installed(distribution: str) -> str | None:
    """The installed version, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, int]:
    """Major and minor of a version; (0, 0) where it has none."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
