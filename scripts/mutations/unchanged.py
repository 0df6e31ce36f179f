"""What the extension compares for the guards of regions, each comparison made blind.

python scripts/mutation_table.py unchanged
"""

from __future__ import annotations

from .rows import Row, compiled, edited

__all__ = ["ROWS"]

TESTS = "tests/unit/test_unchanged.py"
CONTAINERS = ("tests/unit/test_state_containers.py", "-k", "extension")
FILE = "unchanged.h"


def _blind(what: str, tests: tuple[str, ...], *edits: tuple[str, str]) -> Row:
    return Row(f"unchanged: {what}", compiled(*((FILE, old, new) for old, new in edits)), tests)


ROWS = (
    _blind("addresses", (TESTS, "-k", "tensor_that_changed"), ("take(address(t)) && ", "")),
    _blind(
        "sizes",
        (TESTS, "-k", "tensor_that_changed"),
        ("same = take(sizes[j]) && take(strides[j])", "same = take(strides[j])"),
    ),
    _blind(
        "strides",
        (TESTS, "-k", "tensor_that_changed"),
        ("same = take(sizes[j]) && take(strides[j])", "same = take(sizes[j])"),
    ),
    _blind("dtypes", (TESTS, "-k", "tensor_that_changed"), ("take(uint64_t(t.scalar_type())) && ", "")),
    _blind("who needs a gradient", (TESTS, "-k", "tensor_that_changed"), ("take(impl->requires_grad()) && ", "")),
    _blind(
        "classes of tensors",
        (TESTS, "-k", "tensor_that_changed"),
        ("take(cls) && ", ""),
    ),
    _blind("dispatch keys", (TESTS, "-k", "dispatch_keys"), (" && take(impl->key_set().raw_repr())", "")),
    _blind(
        "the mode of gradients",
        (TESTS, "-k", "mode_of_gradients"),
        ("!take(c10::GradMode::is_enabled())", "!take(true)"),
    ),
    _blind("how many tensors there are", (TESTS, "-k", "more_or_fewer"), ("}) && words.is_over();", "});")),
    _blind(
        "how many addresses there are",
        (TESTS, "-k", "more_or_fewer"),
        ("      return words.is_over();", "      return true;"),
    ),
    _blind(
        "gradients",
        (TESTS, "-k", "come_and_go"),
        ("if (graded != bool(PyBytes_AS_STRING(present)[i])) return false;", ""),
    ),
    _blind(
        "sizes of dicts",
        CONTAINERS,
        ("if (uint64_t(PyDict_GET_SIZE(dict)) != words.next()) return false;", "words.next();"),
    ),
    _blind("keys of dicts", CONTAINERS, ("!is_next(key) ||", "(++at, false) ||")),
    _blind("values of dicts", CONTAINERS, ("|| !is_next(value)) return false;", "|| (++at, false)) return false;")),
    _blind(
        "lengths of lists",
        CONTAINERS,
        ("if (uint64_t(PyList_GET_SIZE(list)) != words.next()) return false;", "words.next();"),
    ),
    _blind("items of lists", CONTAINERS, ("if (!is_next(PyList_GET_ITEM(list, j))) return false;", "++at;")),
    _blind("names", (TESTS, "-k", "names_that"), ("return (now ? now : absent) == then;", "return true;")),
    _blind("names that were not there", (TESTS, "-k", "names_that"), ("(now ? now : absent)", "(now ? now : then)")),
    _blind(
        "attributes of functions",
        (TESTS, "-k", "attributes_of"),
        ("if (now) return now == then;", "if (now) return true;"),
    ),
    _blind(
        "other attributes",
        (TESTS, "-k", "attributes_of or cell"),
        ("      Py_DECREF(now);\n      return now == then;", "      Py_DECREF(now);\n      return true;"),
    ),
    _blind(
        "classes of objects",
        (TESTS, "-k", "classes_of"),
        ("if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != cls) return false;", ""),
    ),
    _blind(
        "dicts of attributes",
        (TESTS, "-k", "dicts_of_their"),
        ("return then == Py_None || attributes(object) == then;", "return true;"),
    ),
    Row(
        "unchanged: a nonempty ordered dict taken for a dict",
        edited("grape.runtime.state.containers", "(type(one) is OrderedDict and not one)", "type(one) is OrderedDict"),
        CONTAINERS,
    ),
    Row(
        "unchanged: tensors of the person's classes taken for torch's",
        edited("grape.runtime.guarding.tensor_guards", "all(type(tensor) in _PLAIN for tensor in tensors)", "True"),
        (TESTS, "-k", "odd"),
    ),
    Row(
        "unchanged: references of the checks not counted",
        edited("grape.runtime.state.checked", "check.args[:3] if isinstance(check, partial) else ()", "()"),
        (TESTS, "-k", "counted"),
    ),
    Row(
        "unchanged: in Python, tensors that are read conjugated or negated",
        edited("grape.runtime.guarding.tensor_guards", "*bits, ", ""),
        (TESTS, "-k", "looks_otherwise"),
    ),
    Row(
        "unchanged: in Python, classes of tensors",
        edited("grape.runtime.guarding.tensor_guards", "[*map(type, tensors)], flags", "flags"),
        (TESTS, "-k", "looks_otherwise"),
    ),
    Row(
        "unchanged: in Python, who needs a gradient where none is recorded",
        edited(
            "grape.runtime.guarding.tensor_guards",
            ", [*map(_needs_grad, tensors)]",
            ", torch.is_grad_enabled() and [*map(_needs_grad, tensors)]",
        ),
        (TESTS, "-k", "looks_otherwise"),
    ),
    Row(
        "unchanged: in Python, dicts of attributes",
        edited(
            "grape.runtime.guarding.guards", "return all(map(operator.is_, map(", "return all(map(lambda *_: True, map("
        ),
        (TESTS, "-k", "hold_as_without"),
    ),
    Row(
        "unchanged: the dict of attributes of the root",
        edited("grape.runtime.guarding.guards", " and vars(root) is self._root_attributes", ""),
        (TESTS, "-k", "hold_as_without"),
    ),
)
