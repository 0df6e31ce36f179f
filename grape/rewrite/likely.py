"""Will a finding have a rewrite? Told from the syntax tree of its source alone, so that the report of a cell can say so
and no cell waits for LibCST or for what `registry.fix` makes: that may refuse a rewrite for more reasons than these.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator

from ..model import CellEvidence, Finding
from ..quiet import syntax_tree
from .result import Declined
from .source import mask

GRADIENTS = frozenset(
    re.findall(
        r"\w+",
        """
        backward grad autograd requires_grad requires_grad_ grad_fn optim optimizer optimizers zero_grad enable_grad
        set_grad_enabled retain_grad register_hook GradScaler vjp jvp jacrev jacfwd hessian func create_graph is_leaf
        trainer Trainer accelerator clip_grad_norm_ AdamW Adam SGD
        """,
    )
)
"""Names of sources that need gradients."""
HARMLESS = frozenset(
    re.findall(
        r"\w+",
        """
        abs all any bool dict enumerate float int len list max min print range reversed round set sorted str sum tuple
        zip tqdm append extend items keys values item tolist cpu to cuda numpy detach clone argmax argmin mean std var
        softmax log_softmax sigmoid tanh relu exp log sqrt size numel view reshape squeeze unsqueeze permute transpose
        flatten contiguous long half double eq ne gt lt ge le topk sort gather select index_select expand repeat norm
        eval format join update add sub mul div pow clamp matmul cat stack split chunk where time perf_counter generate
        """,
    )
)
"""What is called beside a region and uses no gradients."""
OWN_CACHE = ("cache_implementation", "past_key_values", "use_cache", "assistant_model", "prompt_lookup_num_tokens")
"""Options of `generate` that choose its cache."""
CONCATENATIONS = ("torch.cat", "torch.concat", "torch.concatenate")
MAKERS = frozenset(
    f"torch.{name}" for name in ("tensor", "scalar_tensor", "zeros", "ones", "full", "arange", "linspace", "eye")
)
READS, CASTS = ("item", "tolist"), ("float", "int")
"""Methods and functions that read a tensor's values."""
LISTS_OF_INDICES = ("nonzero", "where", "argwhere")

_LOOPS = (ast.For, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_WAITS = (ast.Await, ast.Yield, ast.YieldFrom)
_OFF = ("no_grad", "inference_mode")
_MODES = (*_OFF, "enable_grad", "set_grad_enabled", "autocast")
_SIZES = ("len", "size", "numel")
_NO_READS = ("len", "round", "str", "input")


def source_of(evidence: CellEvidence, file: str) -> str | None:
    """The source of a cell or file as it was typed, as far as that is known; None where it is not."""
    if file == evidence.file:
        return evidence.source
    source = dict(evidence.sources).get(file)
    if source is None or "get_ipython()" in source:
        return None
    # What ran before under ``%%grape`` is kept with that line as the comment that it became.
    return source[2:] if source.startswith("# %%grape") else source


def has_likely_fix(evidence: CellEvidence, finding: Finding) -> bool:
    """False where there is no rewrite for sure, and where the source is not known."""
    check = _CHECKS.get(finding.code)
    if check is None or not finding.fixable or finding.at is None:
        return False
    source = source_of(evidence, finding.at.file)
    tree = _tree_of(source) if source is not None else None
    return tree is not None and check(tree, finding, finding.at.line)


@functools.lru_cache(maxsize=4)
def _tree_of(source: str) -> _Tree | None:
    masked = mask(source)
    module = syntax_tree(masked.text) if not isinstance(masked, Declined) else None
    return _Tree(module) if module is not None else None


class _Tree:
    def __init__(self, module: ast.Module) -> None:
        self.nodes = list(ast.walk(module))
        self._above = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        while (parent := self._above.get(node)) is not None:
            yield parent
            node = parent

    def calls(self, line: int | None = None) -> list[ast.Call]:
        found = [node for node in self.nodes if isinstance(node, ast.Call)]
        return [one for one in found if line is None or one.lineno <= line <= (one.end_lineno or 0)]

    def statement(self, node: ast.AST) -> ast.stmt:
        return next(one for one in (node, *self.above(node)) if isinstance(one, ast.stmt))

    def statements(self, line: int) -> list[ast.stmt]:
        """Those on the line that hold no others."""
        simple = [node for node in self.nodes if isinstance(node, ast.stmt) and not hasattr(node, "body")]
        return [node for node in simple if node.lineno <= line <= (node.end_lineno or 0)]

    def loops(self, node: ast.AST) -> list[ast.For | ast.While]:
        """Around `node`, within its function, the innermost first."""
        found: list[ast.For | ast.While] = []
        for one in self.above(node):
            if isinstance(one, _FUNCTIONS):
                break
            if isinstance(one, _LOOPS):
                found.append(one)
        return found

    def names(self) -> set[str]:
        named = {node.id for node in self.nodes if isinstance(node, ast.Name)}
        return named | {node.attr for node in self.nodes if isinstance(node, ast.Attribute)}

    def bound(self, name: str) -> list[ast.AST]:
        """Where the variable `name` is bound: assignments, and whatever else stands above such a name."""
        stored = [n for n in self.nodes if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]
        return [self._above[one] for one in stored]

    def is_beside(self, loop: ast.AST, made: ast.AST) -> bool:
        """True where the loop stands in one block with `made`, or in a ``with torch.no_grad():`` there."""
        for above in self.above(loop):
            if above is self._above.get(made):
                return True
            if not isinstance(above, ast.With) or any(_last(one.context_expr) not in _MODES for one in above.items):
                return False
        return False


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    before = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{before}.{node.attr}" if before and isinstance(node, ast.Attribute) else ""


def _called(node: ast.AST | None) -> str:
    """The dotted name of what is called, its last part where the rest is an expression."""
    func = node.func if isinstance(node, ast.Call) else None
    return (_dotted(func) or getattr(func, "attr", "")) if func is not None else ""


def _last(node: ast.AST | None) -> str:
    return _called(node).rpartition(".")[2]


def _uses(name: str, within: ast.AST) -> list[ast.Name]:
    return [node for node in ast.walk(within) if isinstance(node, ast.Name) and node.id == name]


def _is_read(node: ast.Call) -> bool:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr in READS and not node.args
    cast = isinstance(node.func, ast.Name) and node.func.id in CASTS and len(node.args) == 1
    inner = node.args[0] if cast else None
    if inner is None or isinstance(inner, ast.Constant):
        return False
    return not isinstance(inner, ast.Call) or not (
        _is_read(inner) or _called(inner) in ("len", "round", "str", "input")
    )


def _deferred(tree: _Tree, finding: Finding, line: int) -> bool:
    """GR101"""
    reads = [call for call in tree.calls(line) if _is_read(call)]
    if len(reads) != 1 or len(tree.statements(line)) > 1:
        return False
    read = reads[0]
    tensor = read.func.value if isinstance(read.func, ast.Attribute) else read.args[0]
    around = next(tree.above(read))
    if isinstance(around, (ast.ListComp, ast.GeneratorExp)):
        target = around.generators[0].target
        return around.elt is read and not (isinstance(target, ast.Name) and _dotted(tensor) == target.id)
    loops, statement = tree.loops(read), tree.statement(read)
    if not loops or _is_on_cpu(tensor) or statement.lineno == loops[0].lineno:
        return False
    if any(isinstance(one, ast.Try) for one in tree.above(read)) or any(
        isinstance(node, _WAITS) for node in ast.walk(loops[0])
    ):
        return False
    if isinstance(statement, ast.Expr):
        call = statement.value
        appends = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append"
        return appends and isinstance(call, ast.Call) and call.args == [read] and _is_kept(tree, call.func, loops)
    if not isinstance(statement, ast.AugAssign) or not isinstance(statement.target, ast.Name):
        return False
    if not isinstance(statement.op, (ast.Add, ast.Sub)) or len(_uses(statement.target.id, loops[0])) > 1:
        return False
    return _is_scaled(statement.value, read)


def _is_on_cpu(tensor: ast.expr) -> bool:
    inner = [node for node in ast.walk(tensor) if isinstance(node, ast.Call)]
    named = {_called(node).partition(".")[0] for node in inner} & {"np", "numpy", "math"}
    return bool(named) or any(_last(node) == "numpy" or _is_read(node) for node in inner)


def _is_scaled(value: ast.expr, read: ast.Call) -> bool:
    """The value that is read, multiplied or divided by constants and sizes alone."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Mult, ast.Div)):
        left, right = value.left, value.right
        return any(_is_scaled(one, read) and _is_size(other) for one, other in ((left, right), (right, left)))
    return value is read


def _is_size(node: ast.expr) -> bool:
    shape = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    return shape or isinstance(node, ast.Constant) or _last(node) in _SIZES


def _is_kept(tree: _Tree, append: ast.expr, loops: list[ast.For | ast.While]) -> bool:
    """A list is filled that this source makes, and that the loop does nothing else with."""
    kept = append.value if isinstance(append, ast.Attribute) else append
    root = kept.value if isinstance(kept, ast.Subscript) else kept
    bound = tree.bound(root.id) if isinstance(root, ast.Name) else []
    made = [one for one in bound if any(tree.is_beside(loop, one) for loop in loops)]
    if not isinstance(root, ast.Name) or not made:
        return False
    if isinstance(kept, ast.Subscript):
        return True
    value = made[0].value if isinstance(made[0], ast.Assign) else None
    empty = _called(value) == "list" or (isinstance(value, ast.List) and not value.elts)
    return empty and len(_uses(root.id, loops[0])) == 1


def _on_device(tree: _Tree, finding: Finding, line: int) -> bool:
    """GR102"""
    decides = (ast.If, ast.While, ast.IfExp, ast.Assert, ast.BoolOp, ast.Compare)
    return finding.region is not None and any(isinstance(n, decides) and n.lineno == line for n in tree.nodes)


def _masked(tree: _Tree, finding: Finding, line: int) -> bool:
    """GR103"""
    if any(_last(call) in LISTS_OF_INDICES and len(call.args) < 2 for call in tree.calls(line)):
        return True
    return any(
        isinstance(one, ast.Assign) and len(one.targets) == 1 and _is_item(one.targets[0])
        for one in tree.statements(line)
    )


def _is_item(target: ast.expr) -> bool:
    return isinstance(target, ast.Subscript) and not isinstance(target.slice, (ast.Tuple, ast.Slice, ast.Constant))


def _allocated(tree: _Tree, finding: Finding, line: int) -> bool:
    """GR202"""
    generating = [call for call in tree.calls(line) if _last(call) == "generate"]
    if generating:
        options = {keyword.arg for keyword in generating[0].keywords}
        of_transformers = "transformers" in str(dict(finding.evidence).get("in_library"))
        return of_transformers and len(generating) == 1 and not options & set(OWN_CACHE)
    for one in tree.statements(line):
        if (
            isinstance(one, ast.Assign)
            and _called(one.value) in CONCATENATIONS
            and isinstance(one.targets[0], ast.Name)
        ):
            loops = tree.loops(one)
            return bool(loops) and len(_uses(one.targets[0].id, loops[0])) == 2
    return False


def _without_cudnn(tree: _Tree, finding: Finding, line: int) -> bool:
    """GR203"""
    return "cudnn_attention" in str(dict(finding.evidence).get("operator")) and "sdpa_kernel" not in tree.names()


def _moved(tree: _Tree, finding: Finding, line: int) -> bool:
    """GR302"""
    return any(_last(call) in ("to", "cuda") for call in tree.calls(line))


def _fed(tree: _Tree, finding: Finding, line: int) -> bool:
    """GR303"""
    loops = [node for node in tree.nodes if isinstance(node, ast.For) and node.lineno == line]
    source = loops[0].iter if loops else None
    while _last(source) in ("enumerate", "tqdm") and isinstance(source, ast.Call) and source.args:
        source = source.args[0]
    if isinstance(source, ast.Name):
        made = tree.bound(source.id)
        source = made[0].value if len(made) == 1 and isinstance(made[0], ast.Assign) else None
    return _last(source) == "DataLoader"


def _hoisted(tree: _Tree, finding: Finding, line: int) -> bool:
    """GR401"""
    made = [call for call in tree.calls(line) if _called(call) in MAKERS]
    if not made:
        return _masked(tree, finding, line)
    beside = [node for call in made for one in call.args for node in ast.walk(one)]
    return len(made) == 1 and not any(isinstance(node, (ast.Name, ast.Call)) for node in beside)


def _counted(tree: _Tree, finding: Finding, line: int) -> bool:
    """GR403"""
    for one in tree.nodes:
        if not isinstance(one, ast.FunctionDef) or not one.lineno <= line <= (one.end_lineno or 0):
            continue
        called = [call for call in tree.calls() if _called(call) == one.name]
        loops = tree.loops(called[0]) if len(called) == 1 else []
        counter = loops[0].target if loops and isinstance(loops[0], ast.For) else None
        if finding.region in (None, one.name) and isinstance(counter, ast.Name) and isinstance(loops[0], ast.For):
            return _called(loops[0].iter) == "range" and bool(_uses(counter.id, called[0]))
    return False


def _without_gradients(tree: _Tree, finding: Finding, line: int) -> bool:
    """GR405"""
    known = dict(finding.evidence)
    waits = any(isinstance(node, _WAITS) for node in tree.nodes)
    if not known.get("needs_grad") or waits or tree.names() & (GRADIENTS | set(_OFF)):
        return False
    names = {*re.findall(r"[\w.]+", re.sub(r" #\d+$", "", finding.region or "")), str(known.get("called_as"))}
    defined = {node.name for node in tree.nodes if isinstance(node, ast.FunctionDef)}
    called = [call for call in tree.calls() if _called(call) in names]
    blocks = {next(reversed(tree.loops(call)), tree.statement(call)) for call in called}
    return len(blocks) == 1 and all(
        _called(node) in names | defined or _last(node) in HARMLESS or _called(node).partition(".")[0] in ("torch", "F")
        for node in ast.walk(blocks.pop())
        if isinstance(node, ast.Call)
    )


_CHECKS: dict[str, Callable[[_Tree, Finding, int], bool]] = {
    "GR101": _deferred,
    "GR102": _on_device,
    "GR103": _masked,
    "GR202": _allocated,
    "GR203": _without_cudnn,
    "GR302": _moved,
    "GR303": _fed,
    "GR401": _hoisted,
    "GR403": _counted,
    "GR405": _without_gradients,
}
"""By the code; of GR404 there is none."""
