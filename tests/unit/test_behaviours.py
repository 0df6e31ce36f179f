"""What a person may count on wherever a cell runs, and the test in a real front end or kernel that holds it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CELL = "integration/test_cell_behaviour.py"
FRONT_ENDS = "browser/test_front_ends.py"
PAGE = "browser/test_view_page.py"

BEHAVIOURS = {
    "traceback": f"{CELL}::test_traceback_is_that_of_the_plain_cell",
    "last expression": f"{CELL}::test_outputs_are_those_of_the_plain_cell",
    "await": f"{CELL}::test_outputs_are_those_of_the_plain_cell",
    "Ctrl-C": f"{CELL}::test_interrupt_then_the_next_cell_works",
    "Run All": f"{CELL}::test_exception_stops_run_all",
    "unload": f"{CELL}::test_bad_options_and_empty_cells_say_so_and_go_on",
    "namespace": f"{CELL}::test_state_after_the_cells_is_that_of_plain_cells",
    "output": f"{FRONT_ENDS}::test_summary_first_then_the_widget",
    "offline": f"{PAGE}::test_nothing_is_fetched",
    "untrusted": f"{FRONT_ENDS}::test_saved_and_untrusted_the_summary_stands",
    "nbconvert": f"{FRONT_ENDS}::test_nbconvert_keeps_the_summary",
    "dark": f"{FRONT_ENDS}::test_theme_switch",
    "keyboard": f"{PAGE}::test_keyboard_alone",
    "completion": f"{CELL}::test_kernel_completes_options_and_commands",
    "help": f"{CELL}::test_kernel_explains_the_magic",
    "parity of the CLI": "integration/test_cli_parity.py::test_regions_and_findings_are_those_of_the_magic",
    "-o": f"{CELL}::test_bad_options_and_empty_cells_say_so_and_go_on",
    "the trace opens in Perfetto": "browser/test_perfetto_parser.py::test_all_is_read_and_none_is_dropped",
    "a proxied server": "browser/test_behind_a_proxy.py::test_report_view_and_buttons_work_there",
    "two commands: make demo": "integration/test_demo.py::test_the_demo_shows_the_verdict_of_a_real_run",
}


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_a_test_holds_it(behaviour: str) -> None:
    file, _, name = BEHAVIOURS[behaviour].partition("::")
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
