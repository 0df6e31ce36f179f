"""Names of a function: which are its own, which of them a run takes and gives back."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .names import names_of, parameters_of

_SEES_NAMES = frozenset({"locals", "vars", "exec", "eval", "dir", "globals", "super", "__class__"})
_COMPILERS = frozenset({"compile", "cuda", "jit", "njit", "script", "triton", "vectorize"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNames:
    """Names that a run of a function reads, all bound by then, and what others read of what it binds.

    Nobody else reads its `temporaries`.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    temporaries: tuple[str, ...]
    own: frozenset[str]
    function: str


@dataclass(frozen=True, slots=True)
class FunctionScope:
    """One function. `shared` names are read by functions inside of it, which see every change of them."""

    name: str
    parameters: tuple[str, ...]
    own: frozenset[str]
    shared: frozenset[str]
    mentioned: Counter[str]

    @classmethod
    def of(cls, function: ast.FunctionDef) -> FunctionScope | None:
        """None where other code may see the function's names, or a name may be unbound again."""
        words = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        words |= {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
        decorators = {
            getattr(node, "attr", getattr(node, "id", ""))
            for decorator in function.decorator_list
            for node in ast.walk(decorator)
        }
        forbidden = (ast.Global, ast.Nonlocal, ast.Delete, ast.Yield, ast.YieldFrom, ast.Await)
        if (
            words & _SEES_NAMES
            or decorators & _COMPILERS
            or any(isinstance(node, forbidden) for node in ast.walk(function))
            or any(word.startswith("__") and not word.endswith("__") for word in words)
        ):
            return None
        parameters = tuple(parameters_of(function.args))
        names = names_of(function.body, parameters)
        return cls(
            function.name,
            parameters,
            frozenset({*parameters, *names.stores}),
            frozenset(names.nested),
            _mentions(function.body),
        )

    def allows(self, statement: ast.stmt) -> bool:
        """True where the statement leaves names alone that a nested function may read at any time."""
        return not self.shared.intersection(names_of([statement]).stores)

    def names_of_run(self, statements: Sequence[ast.stmt], bound: Collection[str]) -> LocalNames | None:
        """The names that these statements take and give; None where one of their names may be unbound."""
        names = names_of(statements)
        inside = _mentions(statements)
        outputs = tuple(name for name in names.stores if self.mentioned[name] > inside[name] or name in names.first)
        inputs = {name: None for name in names.first if name in self.own}
        inputs |= {name: None for name in outputs if name not in names.sure}
        if not set(inputs) <= set(bound):
            return None
        temporaries = tuple(name for name in names.stores if name in self.own and name not in outputs)
        return LocalNames(
            inputs=tuple(inputs), outputs=outputs, temporaries=temporaries, own=self.own, function=self.name
        )


def _mentions(statements: Sequence[ast.stmt]) -> Counter[str]:
    """How often each name stands in the statements, nested scopes included."""
    return Counter(node.id for item in statements for node in ast.walk(item) if isinstance(node, ast.Name))
