"""The view's data, its file and its page."""

from __future__ import annotations

import json
import struct
from html import escape
from pathlib import Path

import pytest

from grape.cli import main
from grape.cli.written.page import Section, html_page
from grape.errors import UsageError
from grape.render import Report, build_report
from grape.render.html.page import read_view, view_json, view_page
from grape.render.timeline.view import View, build_view
from grape.widgets import script, style
from tests.unit.sample_evidence import cell, eager_timeline, host_sync, memory_curve, region, sample, tape_cell


def report() -> Report:
    evidence, findings = sample()
    return build_report(evidence, findings)


def test_figures_are_those_of_the_text() -> None:
    made = report()
    data, text = build_view(made).data, made.to_text(width=200)
    assert data["verdict"] == made.verdict
    for shown in data["regions"]:
        assert shown["name"] in text and shown["outcome"] in text
    main = data["regions"][data["main"]]
    for figure in [*main["bars"], *main["strips"], *data["memory"]["bars"]]:
        assert figure["value"] in text


def test_the_data_is_plain() -> None:
    strange = host_sync(evidence=(("where", Path("x")), ("share", float("nan")), ("set", (1, 2.5))))
    view = build_view(build_report(cell(region()), [strange]))
    assert json.loads(json.dumps(view.data, allow_nan=False)) == view.data


def test_regions_name_their_timelines() -> None:
    data = build_view(report()).data
    assert [(one["before_timeline"], one["after_timeline"]) for one in data["regions"]] == [(0, 1), (2, None)]
    assert [one["label"] for one in data["timelines"]] == ["before", "after", "before"]


def test_the_cells_own_timeline_is_a_choice_of_its_own() -> None:
    data = build_view(build_report(cell(timeline=eager_timeline(calls=1)), [])).data
    assert [one["name"] for one in data["regions"]] == ["the cell, In[4]"]
    assert data["regions"][0]["before_timeline"] == 0 and data["main"] == 0


def test_memory_curves() -> None:
    view, curve = build_view(report()), memory_curve()
    memory = view.data["memory"]
    assert [one["label"] for one in memory["curves"]] == ["allocated", "reserved", "device, all in use"]
    values = struct.unpack_from("<3f", view.blob, memory["curves"][0]["offset"])
    assert values == tuple(map(float, curve.allocated_bytes))
    assert struct.unpack_from("<3f", view.blob, memory["at"]) == (0.0, 100.0, 200.0)


def test_the_tapes_memory_is_that_of_the_process() -> None:
    view = build_view(build_report(tape_cell(region(), memory=memory_curve()), []))
    assert [one["label"] for one in view.data["memory"]["curves"]] == ["resident", "device, all in use"]


@pytest.mark.parametrize(
    ("limit", "dropped", "said"),
    [
        (10_000, 0, ""),
        (1000, 0, "1,000 of 2,421 events shown; the trace holds all"),
        (1000, 5, "1,000 of 2,426 events shown; 5 were not recorded"),
        (10_000, 5, "2,421 of 2,426 events shown; 5 were not recorded"),
    ],
)
def test_what_is_left_out(limit: int, dropped: int, said: str) -> None:
    from dataclasses import replace

    made = build_report(cell(region(before=replace(eager_timeline(), dropped=dropped), after=None)), [])
    assert build_view(made, limit=limit).data["timelines"][0]["left_out"] == said


def test_sources_are_those_that_are_named() -> None:
    sources = (("In[1]", "other\n"), ("In[4]", "stale\n"), ("never.py", "named\n"))
    view = build_view(build_report(cell(region(), sources=sources), [host_sync(at=region().at)]))
    assert view.data["sources"] == {"In[4]": cell().source}


def test_a_file_comes_back_as_it_was() -> None:
    view = build_view(report())
    assert read_view(view_json(view), "x.json") == view


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "'x.json' is not JSON: "),
        ("[]", "'x.json' holds no view; %grape view FILE.json writes one in a notebook"),
        ('{"version": 1, "verdict": "a report"}', "'x.json' holds no view"),
        ('{"format": "grape-view", "version": 9}', "'x.json' is of version 9; this Grape reads version 1"),
        ('{"format": "grape-view", "version": 1, "view": {}, "columns": "%"}', "'x.json' is damaged: "),
        ('{"format": "grape-view", "version": 1, "view": {}, "columns": "eJw="}', "'x.json' is damaged: "),
    ],
)
def test_files_that_are_no_view(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        read_view(text, "x.json")
    assert str(error.value).startswith(said)


def test_a_file_with_too_few_columns_is_damaged() -> None:
    view = build_view(report())
    with pytest.raises(UsageError, match=r"^'x\.json' is damaged: its columns are cut off"):
        read_view(view_json(View(data=view.data, blob=view.blob[:-4])), "x.json")


def test_nothing_in_the_data_ends_its_script_element() -> None:
    evil = build_report(cell(region(), source="</script><script>alert(1)</script>"), [host_sync(message="</script>")])
    page = view_page(build_view(evil), script="", style="")
    assert page.count("</script>") == 2


def test_the_script_and_style_fetch_nothing() -> None:
    text = script() + style()
    assert "http://" not in text and "https://" not in text and "import " not in text.replace("important", "")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    source = tmp_path / "elsewhere" / "decode.json"
    monkeypatch.chdir(tmp_path)
    source.write_text(view_json(build_view(report())))
    assert main(["view", str(source)]) == 0
    assert capsys.readouterr().out == "wrote decode.html\n"
    assert "cell 2.9x faster" in (tmp_path / "decode.html").read_text()
    assert main(["view", str(source), "--out", str(tmp_path / "other.html")]) == 0
    assert (tmp_path / "other.html").read_text() == (tmp_path / "decode.html").read_text()


def test_a_report_becomes_a_page_without_timelines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = report().to_dict()
    Path("one.json").write_text(report().to_json())
    Path("two.json").write_text(json.dumps({"version": 1, "cells": [made, made]}))
    for name, count in (("one", 1), ("two", 2)):
        for _ in range(2):  # a page of Grape's is written again
            assert main(["view", f"{name}.json"]) == 0
            assert capsys.readouterr().out == f"wrote {name}.html\n"
        page = Path(f"{name}.html").read_text()
        assert page.count(escape(made["verdict"])) == count and page.count("<h2>In[4]</h2>") == count
        assert "269" in page or "4.68 ms" in page
        assert "<script" not in page


def test_a_page_of_reports_draws_the_timelines_that_there_are() -> None:
    with_some, without = build_view(report()), build_view(build_report(tape_cell(), ()))
    sections = [
        Section(id=f"s{number}", title="<a>", html="<p>summary</p>", view=view)
        for number, view in enumerate((with_some, without, with_some))
    ]
    page = html_page("all", sections)
    assert page.count('<div class="grape-timelines" data-beside="true">') == 2 and page.count("<h2>&lt;a&gt;</h2>") == 3
    data = page.split('<script type="application/json">')[1].split("</script>")[0]
    assert read_view(data, "page") == with_some
    assert "<script" not in html_page("none", sections[1:2])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.json"], "grape: cannot read 'missing.json': No such file or directory; check the path\n"),
        (["bytes.json"], "grape: 'bytes.json' is not JSON: it is not UTF-8 text\n"),
        (
            ["good.json", "--out", "good.json"],
            "grape: 'good.json' would be overwritten; name another file with --out\n",
        ),
        (["good.json", "--out", "no/x.html"], "grape: cannot write the page to 'no/x.html': "),
    ],
)
def test_the_commands_errors(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bytes.json").write_bytes(b"\xff\xfe\x00")
    Path("good.json").write_text(view_json(build_view(report())))
    assert main(["view", *words]) == 2
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(
    ("captured", "before"),
    [
        ((), ["", "", ""]),
        ((50.0, 150.0), ["250 MB", "300 MB", "900 MB"]),
        ((150.0,), ["310 MB", "400 MB", "1,000 MB"]),
        ((0.0,), ["", "", ""]),
    ],
)
def test_peaks_before_the_first_graph(captured: tuple[float, ...], before: list[str]) -> None:
    memory = build_view(build_report(cell(region(), captured_at_ms=captured), [])).data["memory"]
    assert memory["captured_ms"] == list(captured)
    assert [curve["before"] for curve in memory["curves"]] == before
