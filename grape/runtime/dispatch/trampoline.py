"""Takes over a Python function in place, by its code object.

Every reference to the function, wherever it is kept, calls the new code; nothing is added to any namespace; `undo`
puts the person's code object back. The new code has the parameters of the old one and hands their values to a receiver
that travels in its constants.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable
from threading import get_ident

from ...model.call import Args, Kwargs
from ...tracing import grape_works, is_grape_code

_TYPED: weakref.WeakKeyDictionary[types.CodeType, types.CodeType] = weakref.WeakKeyDictionary()
"""Of code that holds objects of Grape's: the code that it was made from."""
_PARTS: set[types.CodeType] = set()
"""Statements of the person's, as they run around regions. Equal code is one, however often a cell runs: not weak, for
the one that is kept may go first."""


class Trampoline:
    """One function, taken over by `place`. `original` runs the person's code; `receive(args, kwargs)` is called instead
    of it.
    """

    __slots__ = ("_code", "_defaults", "_follower", "_function", "_kwdefaults", "code", "original", "receive")

    def __init__(self, function: types.FunctionType, receive: Callable[[Args, Kwargs], object]) -> None:
        self._function: weakref.ref[types.FunctionType] = weakref.ref(function)
        self.receive = receive
        self.code = function.__code__
        """The person's. To read it of a function is an audit event."""
        self._follower = 0
        self.original = types.FunctionType(
            self.code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        functools.update_wrapper(self.original, function, updated=())
        del self.original.__dict__["__wrapped__"]
        self.original.__kwdefaults__ = function.__kwdefaults__
        self._defaults, self._kwdefaults = function.__defaults__ or (), function.__kwdefaults__ or {}
        self._code = _code_for(self.code, self)

    def place(self) -> None:
        """From here on the function, which lives, calls `receive`: all that this needs has to be there."""
        function = self.target()
        assert function is not None
        function.__code__ = self._code

    def target(self) -> types.FunctionType | None:
        """The function, which dies when the person lets go of it."""
        return self._function()

    @property
    def in_place(self) -> bool:
        """False once somebody else (autoreload, the person) has given the function other code, or it is gone."""
        function = self.target()
        return function is not None and function.__code__ is self._code

    def follow(self) -> None:
        """Take over defaults that were assigned to the function since. An audit hook hears of it, and may come here."""
        function, original, here = self.target(), self.original, get_ident()
        if function is None or self._follower == here:
            return
        self._follower = here
        try:
            defaults, known = function.__defaults__, function.__kwdefaults__
            if defaults is not original.__defaults__ or known is not original.__kwdefaults__:
                original.__defaults__, original.__kwdefaults__ = defaults, known
                self._defaults, self._kwdefaults = defaults or (), known or {}
        finally:
            self._follower = 0

    def given(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """The arguments without those that are defaults: the new code has filled these in."""
        defaults, known = self._defaults, self._kwdefaults
        if defaults and len(args) == self.code.co_argcount:
            left, default = len(args), len(defaults)
            while default and args[left - 1] is defaults[default - 1]:
                left, default = left - 1, default - 1
            args = args[:left]
        if known:
            kwargs = {name: value for name, value in kwargs.items() if name not in known or known[name] is not value}
        return args, kwargs

    def undo(self) -> None:
        """Give the function its own code back, unless it was given other code meanwhile."""
        function = self.target()
        if function is None:
            return
        if self.in_place:
            function.__code__ = self.code


_RECEIVER = "<receiver>"
"""A constant of `_pattern`, which a `_Receiver` replaces."""
_PATTERN = """
def pattern({parameters}):
    {receiver} = {constant!r}
    try:
        return {receiver}(({args}), {{{kwargs}}})
    except BaseException as {error}:
        {receiver}.prune({error})
        raise
"""


@functools.lru_cache(maxsize=1024)
def _pattern(names: tuple[str, ...], positional_only: int, positional: int, flags: int) -> types.CodeType:
    """Code with these parameters; `names` ends with those of ``*args`` and ``**kwargs``, where `flags` has them."""
    rest, keywords = bool(flags & inspect.CO_VARARGS), bool(flags & inspect.CO_VARKEYWORDS)
    named = names[: len(names) - rest - keywords]
    args, kwargs = list(named[:positional]), [f"{name!r}: {name}" for name in named[positional:]]
    parameters = [*args[:positional_only], *["/"][: positional_only > 0], *args[positional_only:]]
    if rest:
        parameters.append(star := f"*{names[len(named)]}")
        args.append(star)
    elif kwargs:
        parameters.append("*")
    parameters += named[positional:]
    if keywords:
        parameters.append(stars := f"**{names[-1]}")
        kwargs.append(stars)
    receiver, error = "receiver", "error"
    while receiver in names:
        receiver += "_"
    while error in names:
        error += "_"
    source = _PATTERN.format(
        parameters=", ".join(parameters),
        receiver=receiver,
        error=error,
        constant=_RECEIVER,
        args="".join(f"{one}, " for one in args),
        kwargs=", ".join(kwargs),
    )
    module = compile(source, __file__, "exec", dont_inherit=True)
    return next(constant for constant in module.co_consts if isinstance(constant, types.CodeType))


def prune_traceback(error: BaseException) -> None:
    """Remove Grape's own frames from a traceback: the person sees theirs, as if nothing stood between.

    A bare ``raise`` afterwards does not add the current frame again (CPython 3.11-3.13).
    """
    with grape_works():  # to read a frame's code is an audit event
        _prune(error)


def _prune(error: BaseException) -> None:
    kept: list[types.TracebackType] = []
    entry = error.__traceback__
    ours = False
    while entry is not None:
        code = entry.tb_frame.f_code
        # A traced operator is called on by Grape, through the one frame of torch's that a plain call does not have.
        ours = is_grape_code(code.co_filename) or (ours and code.co_filename.endswith("torch/_ops.py"))
        if not ours and not is_trampoline(code):
            kept.append(entry)
        entry = entry.tb_next
    for before, after in zip(kept, [*kept[1:], None], strict=False):
        before.tb_next = after
    error.__traceback__ = kept[0] if kept else None


def is_trampoline(code: types.CodeType) -> bool:
    """True where `code` stands in the place of a function's own."""
    return any(type(constant) is _Receiver for constant in code.co_consts)


def _code_for(code: types.CodeType, trampoline: Trampoline) -> types.CodeType:
    flags = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    named = code.co_argcount + code.co_kwonlyargcount
    more = bool(flags & inspect.CO_VARARGS) + bool(flags & inspect.CO_VARKEYWORDS)
    pattern = _pattern(code.co_varnames[: named + more], code.co_posonlyargcount, code.co_argcount, flags)
    constants = tuple(_Receiver(trampoline) if c == _RECEIVER else c for c in pattern.co_consts)
    return pattern.replace(
        co_consts=constants,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
        co_freevars=code.co_freevars,
    )


class _Receiver:
    """Stands in the constants of a trampoline's code, and is how a trampoline is recognized."""

    __slots__ = ("trampoline",)

    def __init__(self, trampoline: Trampoline) -> None:
        self.trampoline = trampoline

    def __call__(self, args: Args, kwargs: Kwargs) -> object:
        return self.trampoline.receive(args, kwargs)

    prune = staticmethod(prune_traceback)


def _trampoline_of(function: types.FunctionType) -> Trampoline | None:
    return _trampoline_with(function.__code__)


def _trampoline_with(code: types.CodeType) -> Trampoline | None:
    for constant in code.co_consts:
        if type(constant) is _Receiver:
            return constant.trampoline
    return None


def note_part(code: types.CodeType) -> None:
    """`code` are statements of what the person wrote, which runs around it."""
    _PARTS.add(code)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            note_part(inner)


def code_behind(code: types.CodeType) -> types.CodeType | None:
    """What the person typed, where that is what runs; None for trampolines and parts, before or around which it runs
    itself.
    """
    return None if code in _PARTS or _trampoline_with(code) else _TYPED.get(code, code)


def written_code(function: types.FunctionType) -> types.CodeType:
    """The code that the person wrote for `function`, also while it is taken over."""
    trampoline = _trampoline_of(function)
    return trampoline.original.__code__ if trampoline else function.__code__


def note_rewritten(new: types.CodeType, code: types.CodeType) -> None:
    """`new` was made from `code`, which the person wrote, and does the same with objects of Grape's."""
    _TYPED[new] = code


def typed_code(function: types.FunctionType) -> types.CodeType:
    """As `written_code`, but also where the loops of the function go through Grape: code for other names than its own
    must not hold what is bound to these.
    """
    code = written_code(function)
    return _TYPED.get(code, code)
