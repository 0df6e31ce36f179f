"""May this code run a second time on copies, seen by nobody? A reason why not, or None.

The answer rests on what is called: functions of torch and math, a few builtins, methods of tensors and containers, and
the person's own functions and modules made of these. Everything else may write a file, start a thread or keep a
reference, so it is not run again.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import math
import textwrap
import types
from collections.abc import Mapping

import torch
import torch.nn.attention

from ..rewrite import names_in_functions
from ..runtime.guarding.environment import foreign_modes
from ..runtime.state import HOOKS, HOOKS_OF_ALL_MODULES, HOOKS_OF_ALL_OPTIMIZERS, hooks_of
from ..tracing import is_watched

_BUILTINS = frozenset(
    {"abs", "all", "any", "bool", "dict", "divmod", "enumerate", "filter", "float", "format", "frozenset", "int"}
    | {"isinstance", "len", "list", "map", "max", "min", "pow", "print", "range", "repr", "reversed", "round", "set"}
    | {"slice", "sorted", "str", "sum", "tuple", "type", "zip", "ValueError", "RuntimeError", "AssertionError"}
)
_STATEMENTS = (
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.For, ast.While, ast.If, ast.With, ast.FunctionDef),
    *(ast.Return, ast.Pass, ast.Break, ast.Continue, ast.Assert, ast.Try, ast.Raise, ast.Import, ast.ImportFrom),
    *(ast.Delete,),
)
_NOT_OF_TORCH = (
    *("save", "load", "set_", "hub", "distributed", "multiprocessing", "compile", "jit", "seed"),
    *("export", "use_", "profiler"),
)
_CONTAINERS = (list, dict, set, str, tuple)
_PLAIN = (
    *(torch.Tensor, bool, int, float, complex, str, bytes, torch.device, torch.dtype, range, torch.Size),
    type(torch.nn.attention.SDPBackend.MATH),
)
_METHODS = frozenset(
    name
    for kind in (torch.Tensor, *_CONTAINERS)
    for name in dir(kind)
    if not name.startswith("_") and name not in ("share_memory_", "register_hook", "numpy", "backward", "to_sparse")
)
_MODULE_METHODS = frozenset({"eval", "train", "to", "half", "float", "parameters", "named_parameters", "children"})
_TRAINING_METHODS = frozenset({"step", "zero_grad", "backward"})


class Unsafe(Exception):
    """Why code is not run a second time."""


def check_source(source: str, namespace: Mapping[str, object]) -> ast.Module:
    """The tree of code that may run on copies of `namespace`. Raises `Unsafe`."""
    if any(HOOKS_OF_ALL_MODULES) or any(HOOKS_OF_ALL_OPTIMIZERS):
        raise Unsafe("hooks of all modules or optimizers would see it run again")
    if is_watched() or foreign_modes() is not None:
        raise Unsafe("a mode, a debugger or a profiler would see it")
    tree = ast.parse(source)
    _Checker(namespace).check(tree)
    return tree


def names_used(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def names_bound(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


class _Checker:
    def __init__(self, namespace: Mapping[str, object]) -> None:
        self._namespace = namespace
        self._seen: set[object] = set()
        self._parts: set[str] = set()
        self._support: set[str] = set()
        self._has_grape = getattr(namespace.get("grape"), "__name__", "") == "grape"

    def check(self, tree: ast.AST) -> None:
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt) and not isinstance(node, _STATEMENTS):
                raise Unsafe(f"it has a statement that is not run again: {type(node).__name__.lower()}")
            if isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom)):
                raise Unsafe("it waits")
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                _check_import(node)
                self._support |= _flow_names(node)
                self._has_grape |= _is_import_of_grape(node)
            elif isinstance(node, ast.FunctionDef) and node.decorator_list:
                raise Unsafe(f"`{node.name}` is decorated")
            elif isinstance(node, ast.Call):
                self._check_call(node)
            elif isinstance(node, ast.Attribute):
                self._check_attribute(node)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in defined:
                self._check_name(node.id)

    def _check_name(self, name: str) -> None:
        if name in self._namespace:
            self._check_value(name, self._namespace[name])
        elif hasattr(builtins, name) and name not in _BUILTINS:
            raise Unsafe(f"`{name}` may do more than compute")

    def _check_attribute(self, node: ast.Attribute) -> None:
        """Check what a module of the notebook holds under a dotted name; any other attribute is data of a checked
        value.
        """
        if node.attr.startswith("__"):
            raise Unsafe(f"it reaches for `{node.attr}`")
        path = _path(node)
        if self._has_grape and _is_of_grape(path):
            return
        value = self._namespace.get(path[0]) if path else None
        if not isinstance(value, types.ModuleType):
            return
        if not isinstance(node.ctx, ast.Load) or any(name.startswith("_") for name in path[1:]):
            raise Unsafe(f"it reaches into the module `{path[0]}`")
        for name in path[1:]:
            value = getattr(value, name, None)
        if not isinstance(value, types.ModuleType):
            self._check_value(".".join(path), value)

    def _check_call(self, node: ast.Call) -> None:
        """A name or a module's function is checked where it stands; here remain methods, and what has no name."""
        if any(keyword.arg == "num_workers" for keyword in node.keywords):
            raise Unsafe("it starts worker processes")
        if isinstance(node.func, ast.Name):
            return
        shown = ast.unparse(node.func)
        if not isinstance(node.func, ast.Attribute):
            raise Unsafe(f"what `{shown}` is cannot be told")
        path = _path(node.func)
        of_module = bool(path) and isinstance(self._namespace.get(path[0]), types.ModuleType)
        if any(keyword.arg == "create_graph" for keyword in node.keywords):
            raise Unsafe("it differentiates gradients, and autograd would number the nodes of later ones otherwise")
        if len(path) == 2 and (path[0] in self._support or (self._has_grape and _is_of_grape(path))):
            return
        if len(path) == 2 and path[0] == "self" and path[1] in self._parts:
            return
        if not of_module and node.func.attr not in _METHODS | _MODULE_METHODS | _TRAINING_METHODS:
            raise Unsafe(f"`{shown}` may do more than compute")

    def _check_callable(self, shown: str, value: object) -> None:
        name = getattr(value, "__name__", "")
        if name and getattr(builtins, name, None) is value:
            if name not in _BUILTINS:
                raise Unsafe(f"`{shown}` may do more than compute")
        elif isinstance(value, torch.nn.Module):
            self._check_module(shown, value)
        elif isinstance(value, types.FunctionType) and value.__globals__ is self._namespace:
            self._check_function(value)
        elif not _is_of_torch(value, shown):
            raise Unsafe(f"the cell calls `{shown}`, which may do more than compute")

    def _check_function(self, function: types.FunctionType) -> None:
        if function in self._seen:
            return
        self._seen.add(function)
        if function.__closure__ or inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise Unsafe(f"`{function.__name__}` is a closure or a generator")
        self.check(_tree_of(function))

    def _check_module(self, shown: str, module: torch.nn.Module) -> None:
        self._parts |= {name for part in module.modules() for name, _ in part.named_children()}
        for part in module.modules():
            kind = type(part)
            if any(getattr(part, hooks, None) for hooks in HOOKS):
                raise Unsafe(f"`{shown}` has hooks")
            _refuse_own_methods(shown, part)
            for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
                _check_tensor(shown, tensor)
            forward = inspect.getattr_static(kind, "forward", None)
            home = getattr(forward, "__module__", None) or ""
            if kind in self._seen or (kind.__module__.startswith("torch.nn.") and home.startswith("torch.")):
                continue
            self._seen.add(kind)
            if not isinstance(forward, types.FunctionType) or forward.__globals__ is not self._namespace:
                raise Unsafe(f"`{shown}` is code of `{kind.__module__.partition('.')[0]}`, which Grape does not know")
            tree = _tree_of(forward)
            self.check(tree)
            for name in names_in_functions(ast.unparse(tree)):
                # A method keeps the live globals, where only what nobody can change may be used.
                if isinstance(self._namespace.get(name), (types.FunctionType, torch.Tensor, list, dict, set)):
                    raise Unsafe(f"`{kind.__name__}.forward` uses `{name}` of the notebook")

    def _check_value(self, shown: str, value: object) -> None:
        if isinstance(value, torch.Tensor):
            _check_tensor(shown, value)
        elif isinstance(value, torch.optim.Optimizer):
            _check_optimizer(shown, value)
        elif isinstance(value, types.ModuleType) or value is None or isinstance(value, _PLAIN):
            return
        elif isinstance(value, (list, tuple, set, dict)):
            items = [*value, *value.values()] if isinstance(value, dict) else value
            for item in items:
                if item is not value and callable(item):
                    raise Unsafe(f"`{shown}` holds functions")
                self._check_value(shown, item)
        elif type(value) is torch.utils.data.TensorDataset:
            return
        elif isinstance(value, torch.utils.data.DataLoader):
            self._check_loader(shown, value)
        elif callable(value):
            self._check_callable(shown, value)
        else:
            raise Unsafe(f"`{shown}` is a {type(value).__name__}, which is not copied")

    def _check_loader(self, shown: str, loader: torch.utils.data.DataLoader[object]) -> None:
        dataset = loader.dataset
        if loader.num_workers or loader.collate_fn is not torch.utils.data.default_collate:
            raise Unsafe(f"`{shown}` has workers or collates by itself")
        if not type(dataset).__module__.startswith("torch."):
            self._check_value(shown, dataset)


def _check_tensor(shown: str, tensor: torch.Tensor) -> None:
    """A copy has no hooks, and a class of the person's may do anything when it is copied."""
    if hooks_of(tensor):
        raise Unsafe(f"`{shown}` has hooks")
    if not type(tensor).__module__.startswith("torch"):
        raise Unsafe(f"`{shown}` is a {type(tensor).__name__}, which is not copied")


def _check_optimizer(shown: str, optimizer: torch.optim.Optimizer) -> None:
    kind = type(optimizer)
    if not (kind.__module__.startswith("torch.") and kind.step.__module__.startswith("torch.")):
        raise Unsafe(f"`{shown}` is a {kind.__name__}, which is not copied")
    if any(hooks for name, hooks in vars(optimizer).items() if name.endswith("_hooks")):
        raise Unsafe(f"`{shown}` has hooks")
    _refuse_own_methods(shown, optimizer)
    for tensor in (one for group in optimizer.param_groups for one in group["params"]):
        _check_tensor(shown, tensor)


def _refuse_own_methods(shown: str, value: object) -> None:
    """A scheduler puts a `step` on its optimizer that steps this very one, whichever copy it is called on."""
    for name, own in vars(value).items():
        if isinstance(own, (types.FunctionType, types.MethodType, functools.partial)):
            raise Unsafe(f"`{shown}` has a `{name}` of its own, which a copy would share")


def _tree_of(function: types.FunctionType) -> ast.Module:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        raise Unsafe(f"the source of `{function.__name__}` is not known") from None
    return tree


def _check_import(node: ast.Import | ast.ImportFrom) -> None:
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    for name in names:
        if _flow_names(node) or _is_import_of_grape(node):
            return
        if name.partition(".")[0] not in ("torch", "math"):
            raise Unsafe(f"it imports `{name}`")


def _flow_names(node: ast.Import | ast.ImportFrom) -> set[str]:
    """Under which name rewritten control flow calls what decides for it."""
    if not isinstance(node, ast.ImportFrom) or node.module != "grape" or [a.name for a in node.names] != ["flow"]:
        return set()
    return {alias.asname or alias.name for alias in node.names}


def _is_import_of_grape(node: ast.Import | ast.ImportFrom) -> bool:
    """True for what rewrites import; of it, nothing but what they call may be used."""
    return isinstance(node, ast.Import) and ast.unparse(node) == "import grape"


def _is_of_grape(path: list[str]) -> bool:
    return path in (["grape", "prefetch"], ["grape", "pad_edges"])


def _is_of_torch(value: object, shown: str) -> bool:
    if value is None:
        return False
    home = getattr(value, "__module__", None) or type(value).__module__ or ""
    last = shown.rpartition(".")[2]
    if home.startswith(("torch._functorch", "torch.autograd.functional")):  # they differentiate gradients, too
        return False
    if any(f".{word}" in f".{shown}" or last.startswith(word) for word in _NOT_OF_TORCH):
        return False
    of_torch = home.partition(".")[0] == "torch" or getattr(torch, last, None) is value
    return of_torch or getattr(math, last, None) is value


def _path(node: ast.expr) -> list[str]:
    """["torch", "nn", "functional"] of such an expression; empty for anything else."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        before = _path(node.value)
        return [*before, node.attr] if before else []
    return []
