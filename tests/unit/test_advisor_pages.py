"""Every code has a rule, a page and a test; `explain` shows the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from grape.advisor import explain
from grape.advisor.rules import RULES
from grape.errors import UsageError
from grape.model import CODES

HEADINGS = ("**What it sees.**", "**What it costs.**", "**The fix.**", "**When it is wrong.**")


def test_every_code_has_one_rule_in_the_order_of_the_codes() -> None:
    assert [rule.CODE for rule in RULES] == list(CODES)


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_page_a_test_and_a_docstring(code: str) -> None:
    page = explain(code)
    assert page.startswith(f"# {code} {CODES[code]}\n")
    assert [heading for heading in HEADINGS if heading not in page] == []
    assert "# before" in page and "# after" in page
    assert (Path(__file__).parent / f"test_rules_{code.lower()}.py").exists()
    (rule,) = (rule for rule in RULES if code == rule.CODE)
    documentation = rule.__doc__ or ""
    assert documentation.startswith(f"{code} {CODES[code]}: ")
    for part in ("Sees:", "Costs:", "Fix:", "Wrong when:"):
        assert part in documentation


@pytest.mark.parametrize("code", CODES)
def test_the_snippets_are_python(code: str) -> None:
    snippets = re.findall(r"```python\n(.*?)```", explain(code), re.DOTALL)
    assert snippets
    for snippet in snippets:
        compile(snippet.replace("%%grape\n", ""), code, "exec", dont_inherit=True)


@pytest.mark.parametrize("asked", ["gr101", " GR101 ", "host-sync", "Host-Sync"])
def test_explain_takes_a_code_or_a_name_in_any_case(asked: str) -> None:
    assert explain(asked) == explain("GR101")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("GR111", "unknown finding code 'GR111'; did you mean GR101 (host-sync)?"),
        ("host-snc", "unknown finding code 'host-snc'; did you mean GR101 (host-sync)?"),
        ("???", "unknown finding code '???'; codes: " + ", ".join(CODES)),
    ],
)
def test_an_unknown_code_gets_a_suggestion(asked: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        explain(asked)


def test_the_documents_name_every_hundred_of_codes() -> None:
    text = (Path(__file__).parents[2] / "docs" / "README.md").read_text()
    assert re.findall(r"^\| (GR\d)xx \|", text, re.MULTILINE) == sorted({code[:3] for code in CODES})


def test_the_advisor_needs_neither_torch_nor_ipython() -> None:
    program = "import sys, grape.advisor; sys.exit(bool({'torch', 'IPython'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
