"""What the first run pays: loops that starve, shapes that are cold, cells that another kernel knows."""

from __future__ import annotations

from .rows import rows_of

__all__ = ["ROWS"]

STARVED = ("tests/unit/test_rules_gr303.py",)
COLD = ("tests/unit/test_rules_gr203.py",)
AFTERWARDS = ("tests/unit/test_afterwards.py",)
REMEMBERED = ("tests/unit/test_remembered.py",)
STATIC = ("tests/unit/test_advisor_static.py",)

ROWS = (
    *rows_of(
        "grape.profiling.loaders",
        STARVED,
        ("first run: a loader on another thread is timed", "or get_ident() != self._thread or", "or"),
        ("first run: items that draw random numbers are like others", "states != _random_states()", "False"),
        (
            "first run: the start of workers is a wait",
            "if _may_warn(iterator) or _starts_workers(iterator):",
            "if False:",
        ),
        (
            "first run: a frame of Grape's stays in the person's traceback",
            "                error.__traceback__ = below_dispatch(error.__traceback__)\n",
            "",
        ),
        ("first run: the watch stays", "            _ITERATOR.__next__ = original\n", "            pass\n"),
    ),
    *rows_of(
        "grape.rewrite.fixes.starved_loop",
        STARVED,
        ("first run: shuffled rows come in order", 'shuffle.value == "True":', "False:"),
        ("first run: the last rows are always kept", 'if "drop_last" in options', "if False"),
        (
            "first run: whoever asks a loader for its batch size gets another one",
            "            return refused\n",
            "            pass\n",
        ),
        ("first run: workers draw random numbers", 'if known.get("draws") is not False:', "if False:"),
    ),
    *rows_of(
        "grape.fixing.safety",
        STARVED,
        ("first run: a comparison starts processes", 'keyword.arg == "num_workers"', "False"),
    ),
    *rows_of(
        "grape.model.times.cold",
        COLD,
        ("first run: what is slow now and then counts", ">= _QUICK * len(later)", ">= 0"),
        ("first run: waits for the device count", "            if op.kind in _WAITS:\n", "            if False:\n"),
        ("first run: what is always slow counts", "max(least_ms * _NS_PER_MS, (_TIMES - 1) * warm)", "0"),
    ),
    *rows_of(
        "grape.advisor.rules.gr2xx.gr203",
        COLD,
        ("first run: shapes of an earlier cell count", "if not count.earlier_runs]", "]"),
        ("first run: a trace of an earlier run counts", " and not evidence.traced_earlier", ""),
        ("first run: one slow visit is enough", "sure = one.shapes >= _PAIRS or", "sure = True or"),
    ),
    *rows_of(
        "grape.fixing.verification",
        COLD,
        ("first run: any difference is close", "if apart > self.tolerance * scale:", "if False:"),
        ("first run: whole numbers may differ", "one.is_floating_point() and close", "close"),
    ),
    *rows_of(
        "grape.runtime.dispatch.afterwards",
        AFTERWARDS,
        ("first run: shapes that come again count", "if known:\n", "if False:\n"),
        ("first run: a mode of the person's sees the tracer", "return not modes and not", "return True or not"),
        (
            "first run: the patch stays",
            "            torch.nn.Module.__call__ = original",
            "            original = original",
        ),
    ),
    *rows_of(
        "grape.sessions.past.digest",
        REMEMBERED,
        ("first run: other code is the same cell", "code.co_code.hex(), ", ""),
    ),
    *rows_of(
        "grape.sessions.past.remembered",
        REMEMBERED,
        ("first run: a file of another torch is used", "if getattr(self, name) != getattr(here, name):", "if False:"),
        ("first run: any version is read", 'if data.get("version") != VERSION:', "if False:"),
        ("first run: graphs of another process serve", "settled=not served,", "settled=True,"),
    ),
    *rows_of(
        "grape.advisor.static.reading",
        STATIC,
        ("first run: arrays are tensors", "            return True\n", "            return False\n"),
    ),
    *rows_of(
        "grape.advisor.rules.gr2xx.gr201",
        STATIC,
        ("first run: a window has another length each time", "return len(ends) == 1", "return len(ends) >= 1"),
        ("first run: lengths that come once come again", "and context.hot.loop(loop) is not None", ""),
    ),
)
