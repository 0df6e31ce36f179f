"""Rich draws from Python's own generator when it is imported: once for the person, whatever Grape has shown."""

import pytest

from tests.processes import lines_of_an_interpreter

SHOWN = """
from IPython.core.interactiveshell import InteractiveShell
import torch
shell = InteractiveShell.instance()
shell.run_cell("%load_ext grape")
shell.run_cell("%%grape --no-widget\\nx = torch.ones(2) + 1")
import grape
text = str(grape.last)
"""
IMPORTED = """
import random, sys
random.seed(0)
import rich
before = SHOW()
import rich.console
drawn = [random.random()]
after = SHOW()
print(drawn, random.random(), rich.console.Text is rich.text.Text, before == after)
"""


@pytest.mark.parametrize("first", [SHOWN, SHOWN + "import rich.text\n"], ids=["not imported", "imported"])
def test_an_import_draws_beside_grape_what_it_draws_without(first: str) -> None:
    plain = IMPORTED.replace("SHOW()", "''")
    beside = IMPORTED.replace("SHOW()", "str(grape.last)")
    own = first.removeprefix(SHOWN)
    assert lines_of_an_interpreter(first + beside)[-1] == lines_of_an_interpreter(own + plain)[-1]
    assert lines_of_an_interpreter(SHOWN + beside + "print(text == before)")[-1] == "True"
