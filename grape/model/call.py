"""The arguments of a call of the person's code. They may be anything."""

from __future__ import annotations

from typing import Any, TypeAlias

Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]
