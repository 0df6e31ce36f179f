"""IPython's lines are masked line for line and come back exactly; digests and differences."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grape.rewrite import Declined, Rewritten, digest, names_bound, names_in_functions, split_magic, unified_diff
from grape.rewrite.registry import fix, moved
from grape.rewrite.source import Masked, mask
from tests.unit.rewrite_cases import finding

MASKED = [
    ("x = 1\n", 0),
    ("%%grape --profile\nx = 1\n", 1),
    ("\n\n%%grape\n%%time\nx = 1", 2),
    ("%matplotlib inline\nimport os", 1),
    ("for i in r:\n    !ls -l {i}\n    files = !ls\n    t = %timeit -o f()\n", 3),
    ("obj?\nobj.method??\n?obj\n", 3),
    ("x = (1\n     % 2)\ny = '''\n%time\n!ls\n'''\nz = 7 \\\n  % 2\n", 0),
    ("# really?\ns = 'a?'\n", 0),
    ("async def f():\n    pass\nawait f()\n%time await f()\n", 1),
    ("\ttabs = 1\n".lstrip() + "if tabs:\n\t%time f()\n", 1),
]


@pytest.mark.parametrize(("source", "count"), MASKED)
def test_lines_of_ipython_are_masked_and_restored(source: str, count: int) -> None:
    masked = mask(source)
    assert isinstance(masked, Masked), masked
    assert len(masked.lines) == count
    assert masked.text.count("\n") == source.count("\n")
    assert masked.restore(masked.text) == source


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("%%bash\nls\n", "line 1: the cell belongs to %%bash"),
        ("%%grape\n%%writefile a.py\nx = 1\n", "line 2: the cell belongs to %%writefile"),
        ("def f(:\n", "line 1: the cell is no Python: invalid syntax"),
        ("!pip install a \\\n  b\n", "line 1: a magic or shell line goes on over several lines"),
        ("_grape_masked_0_ = 1\n", "the source uses names that Grape needs for itself"),
    ],
)
def test_other_cells_stay(source: str, why: str) -> None:
    assert str(mask(source)) == why


def test_a_masked_line_that_was_lost_or_moved() -> None:
    masked = mask("%time f()\nx = 1\n!ls\n")
    assert isinstance(masked, Masked)
    lines = masked.text.split("\n")
    assert masked.restore("\n".join(lines[1:])) is None
    assert masked.restore("\n".join(reversed(lines))) is None
    assert masked.restore(masked.text.replace("x = 1", "x = 2")) == "%time f()\nx = 2\n!ls\n"
    indented = "if y:\n" + "\n".join(f"    {line}" for line in lines)
    assert masked.restore(indented) == "if y:\n    %time f()\n    x = 1\n    !ls\n    "


def test_magics_around_a_rewrite_stay() -> None:
    source = "%%grape --profile\n!nvidia-smi\nout = []\nfor x in xs:\n    y = f(x)\n    out.append(y.item())\n%time 3"
    made = fix(source, finding("GR101", 6))
    assert isinstance(made, Rewritten)
    assert made.source == source.replace(
        "y.item())\n", "y.detach().clone())\nout[:] = [value.item() for value in out]\n"
    )


def test_windows_line_ends_and_the_missing_last_one_stay() -> None:
    source = "out = []\r\nfor x in xs:\r\n    y = f(x)\r\n    out.append(y.item())"
    made = fix(source, finding("GR101", 4))
    assert isinstance(made, Rewritten)
    assert made.source == (
        "out = []\r\nfor x in xs:\r\n    y = f(x)\r\n    out.append(y.detach().clone())\r\n"
        "out[:] = [value.item() for value in out]"
    )


def test_digest_names_what_stands_below_the_magic() -> None:
    assert split_magic("\n%%grape --profile\nx = 1\n") == ("\n%%grape --profile\n", "x = 1\n")
    assert split_magic("x = 1\n%%grape\n") == ("", "x = 1\n%%grape\n")
    assert digest("x = 1\n") != digest("x = 2\n")
    assert digest("%%grape\nx = 1\n") == digest("%%grape -o r\nx = 1\n") == digest("x = 1\n") + " below %%grape"


def test_lines_move_with_the_rewrite() -> None:
    old = "a = 1\nb = 2\nc = 3\n"
    assert [moved_to(line, old, "import torch\n" + old) for line in (1, 3)] == [2, 4]
    assert moved_to(2, old, "a = 1\nx = 9\nb = 22\nc = 3\n") == 3
    assert moved_to(2, old, "a = 1\nc = 3\n") is None


def moved_to(line: int, old: str, new: str) -> int | None:
    there = moved(finding("GR101", line), old, new)
    return there.at.line if there is not None and there.at is not None else None


LINES = st.lists(st.sampled_from(["x = 1", "%time f()", "!ls", "y = (2)", "", "# c?", "obj?", "'s'"]), max_size=8)


@given(LINES)
def test_masking_is_undone_exactly(lines: list[str]) -> None:
    source = "\n".join(lines)
    masked = mask(source)
    assert isinstance(masked, Masked), masked
    assert masked.restore(masked.text) == source


@given(LINES, LINES)
def test_diffs_are_those_that_patch_applies(before: list[str], after: list[str]) -> None:
    old, new = "".join(f"{line}\n" for line in before), "".join(f"{line}\n" for line in after)
    diff = unified_diff(old, new, "In[1]")
    assert (diff == "") == (old == new)
    assert applied(old, diff) == new


def applied(old: str, diff: str) -> str:
    """What `diff` makes of `old`."""
    lines, result, at = old.splitlines(keepends=True), [], 0
    for line in diff.splitlines(keepends=True)[2:]:
        if line.startswith("@@"):
            start, _, length = line.split()[1][1:].partition(",")
            first = int(start) - (0 if length == "0" else 1)
            result += lines[at:first]
            at = first
        elif line.startswith("+"):
            result.append(line[1:])
        else:
            assert lines[at] == line[1:]
            if line.startswith(" "):
                result.append(line[1:])
            at += 1
    return "".join([*result, *lines[at:]])


def test_patch_takes_a_diff_without_a_last_line_end(tmp_path: Path) -> None:
    old, new = "a = 1\nb = 2", "a = 1\nb = 3"
    (tmp_path / "cell").write_text(old)
    diff = unified_diff(old, new, "cell")
    try:
        done = subprocess.run(["patch", "-s", "-p0"], input=diff, text=True, cwd=tmp_path, check=False)
    except FileNotFoundError:
        pytest.skip("patch is not installed")
    assert done.returncode == 0
    assert (tmp_path / "cell").read_text() == new


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("x = [value for value in rows]", {"x"}),
        ("x = {key: [part for part in row] for key, row in rows}", {"x"}),
        ("x = [last := row for row in rows]", {"x", "last"}),
        ("row = 1\nx = [row for row in rows]", {"row", "x"}),
        ("for row in rows:\n    print(row)\nelse:\n    done = True", {"row", "done"}),
        ("import a.b as c, d.e\nfrom f import g", set()),
        ("import a\na = a.b", set()),
        ("def f(x):\n    y = x\nclass A:\n    z = 1", {"f", "A"}),
        ("del x\nx += 1\nprint(y)", {"x"}),
        ("x = await y", {"x"}),
    ],
)
def test_names_that_a_cell_binds_are_its_own(text: str, names: set[str]) -> None:
    assert names_bound(text, imports=False) == names
    assert names_bound("import torch\n" + text, imports=True) >= names | {"torch"}


def test_names_that_functions_of_another_cell_use() -> None:
    source = "%time\ndef f(x):\n    y = total\n    def g():\n        return y + limit\n    return [x for x in rows]\n"
    assert names_in_functions(source) == {"total", "limit", "rows"}
    assert names_in_functions("%%bash\nls") == frozenset()
    cell = "losses = []\nfor x in xs:\n    y = step(x)\n    losses.append(y.item())\n"
    assert isinstance(fix(cell, finding("GR101", 4), elsewhere={"loss"}), Rewritten)
    made = fix(cell, finding("GR101", 4), elsewhere={"losses"})
    assert made == Declined(why="`losses` is shared between functions", line=1)


def test_refusal_is_a_value() -> None:
    assert fix("%%bash\nls\n", finding("GR101", 2)) == Declined(why="the cell belongs to %%bash", line=1)
