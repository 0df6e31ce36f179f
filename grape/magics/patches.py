"""One reversible replacement of a method on one object."""

from __future__ import annotations

from collections.abc import Callable


def replace_method(owner: object, name: str, function: Callable[..., object]) -> Callable[[], None]:
    """Set `function` as attribute `name` of the object `owner`; the call returned puts back what was there.

    Where somebody has replaced it again meanwhile, that replacement is left alone: it still calls `function`, which
    must therefore stay correct after it was taken back.
    """
    before = vars(owner).get(name)
    setattr(owner, name, function)

    def restore() -> None:
        if vars(owner).get(name) is not function:
            return
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    return restore
