"""The HTML keeps to what JupyterLab's sanitizer keeps, so that an untrusted notebook shows all of it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from grape.model import Finding, Fix, Position
from grape.render import build_report
from grape.render.html.html_lines import SPENT
from grape.render.html.html_parts import FILLS, TONES
from grape.render.report import Report
from grape.render.timeline.view import build_view
from grape.rewrite import unified_diff
from tests.unit.sample_evidence import cell, host_sync, launch_bound, measured, one_finding, region, sample, tape_cell

TAGS = {"div", "span", "b", "code", "br", "pre", "details", "summary", "table", "thead", "tbody", "tr", "th", "td"}
_COLOR = r"(#[0-9a-f]{6}|rgba\(\d{1,3},\d{1,3},\d{1,3},(0|0\.\d+|1)\)|transparent)"
_LENGTH = r"(0|\d+px)"
_SHARE = r"\d+(\.\d+)?%"
STYLES = {
    "background": _COLOR,
    "border": rf"(0|{_LENGTH} solid {_COLOR})",
    "border-bottom": rf"{_LENGTH} solid {_COLOR}",
    "border-collapse": "collapse",
    "border-left": rf"{_LENGTH} solid {_COLOR}",
    "border-radius": _LENGTH,
    "color": _COLOR,
    "display": "flex",
    "flex-wrap": "wrap",
    "font-family": "monospace",
    "font-size": _LENGTH,
    "font-weight": "600",
    "height": _LENGTH,
    "line-height": r"1\.[34]",
    "margin": rf"{_LENGTH}( {_LENGTH}){{0,3}}|0 0 0 auto",
    "max-width": rf"({_LENGTH}|100%)",
    "opacity": r"(0(\.\d+)?|1(\.0+)?)",
    "overflow": "hidden",
    "overflow-x": "auto",
    "padding": rf"{_LENGTH}( {_LENGTH}){{0,3}}",
    "table-layout": "fixed",
    "text-align": "(left|right)",
    "text-overflow": "ellipsis",
    "vertical-align": "(top|middle)",
    "white-space": "(nowrap|pre-wrap)",
    "width": rf"({_LENGTH}|{_SHARE})",
}
EVIL = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'&"


class Page(HTMLParser):
    """Parses a fragment, checks that tags close in order, and keeps what it saw."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"comment in the page: {data}")

    def styles(self) -> list[dict[str, str]]:
        return [
            dict(part.split(":", 1) for part in (attrs.get("style") or "").split(";") if part) for _, attrs in self.tags
        ]


def evil_report() -> Report:
    where = Position(file=f"In[4]{EVIL}", line=3, function=EVIL)
    finding = Finding(
        code="GR101",
        severity="blocker",
        message=EVIL,
        at=where,
        region=EVIL,
        evidence=((EVIL, EVIL), ("nested", (EVIL, 1.5))),
        advice=EVIL,
    )
    evil = region(EVIL, at=where, verified=f"within {EVIL}")
    return build_report(
        cell(evil, region("other"), file=EVIL, device=EVIL, backend=EVIL, error=f"E: {EVIL}", notes=(EVIL,)),
        (finding, host_sync(fix=None), *[finding] * 9),
    )


REPORTS = {
    "sample": build_report(*sample()),
    "lines": one_finding(rewritten=True),
    "evil": evil_report(),
    "empty": build_report(tape_cell(), ()),
    "error": build_report(tape_cell(error="ValueError: boom"), ()),
    "tape": build_report(tape_cell(region()), (launch_bound(),)),
    "extremes": build_report(
        cell(
            region(before_ms=measured(1e12), after_ms=measured(1e-12), graph_bytes=2**60),
            region("nan", before_ms=measured(float("nan")), after_ms=measured(float("inf"))),
        ),
        (),
    ),
}


@pytest.mark.parametrize("name", REPORTS)
def test_only_tags_attributes_and_styles_that_a_sanitizer_keeps(name: str) -> None:
    page = Page(REPORTS[name].to_html())
    assert {tag for tag, _ in page.tags} <= TAGS
    assert {attribute for _, attributes in page.tags for attribute in attributes} <= {"style", "colspan"}
    for style in page.styles():
        for prop, value in style.items():
            assert re.fullmatch(STYLES[prop], value), f"{prop}: {value}"


def test_what_the_person_wrote_is_escaped_and_shown() -> None:
    html = REPORTS["evil"].to_html()
    assert "<script" not in html
    assert "<img" not in html
    text = "".join(Page(html).text)
    assert text.count(EVIL) >= 15


def test_diff_lines_are_tinted_and_escaped() -> None:
    evidence, findings = sample()
    html = build_report(evidence, findings).to_html()
    assert '<span style="background:rgba(218,54,51,0.25)">-    if done.item() &lt; 1:</span>' in html
    assert '<span style="background:rgba(46,160,67,0.25)">+    with grape.Predicate(done &lt; 1):</span>' in html


def test_bars_are_as_long_as_their_figures() -> None:
    page = Page(REPORTS["sample"].to_html())
    bars = [(s["background"], s["width"]) for s in page.styles() if s.get("height") == "12px"]
    assert bars == [
        (TONES["before"], "100.0%"),
        (TONES["after"], "24.4%"),
        (TONES["memory"], "31.0%"),
        (TONES["memory"], "40.0%"),
        (TONES["memory"], "0.1%"),
        (TONES["memory"], "100.0%"),
    ]


def test_strips_fill_their_width() -> None:
    html = REPORTS["sample"].to_html()
    strips = re.findall(r"<table style=\"[^\"]*width:([\d.]+)%;table-layout:fixed\">(.*?)</table>", html)
    assert [float(width) for width, _ in strips] == [100.0, 34.9, 100.0, 25.0], "the cell, then a few calls"
    for _, cells in strips:
        widths = [float(w) for w in re.findall(r"<td style=\"width:([\d.]+)%", cells)]
        assert sum(widths) == pytest.approx(100, abs=0.5)


def test_busy_is_opaque_and_a_gap_has_the_colour_of_the_track() -> None:
    evidence, _ = sample()
    after = evidence.regions[0].after
    assert after is not None
    idle = type(after)(events=after.events, wall_ns=after.wall_ns * 3, calls=after.calls)
    html = build_report(cell(region(before=idle, after=None)), ()).to_html()
    assert 'height:14px;padding:0;border:0;background:rgba(128,128,128,0.18)"' in html
    assert f"height:14px;padding:0;border:0;background:{TONES['before']};opacity:1.00" in html


def test_the_first_words_are_the_verdict() -> None:
    for report in REPORTS.values():
        assert Page(report.to_html()).text[0] == report.verdict


def test_text_html_and_dict_show_the_same_figures() -> None:
    report = REPORTS["sample"]
    data = report.to_dict()
    html, text = "".join(Page(report.to_html()).text), report.to_text(width=100)
    main = data["regions"][0]
    for figure in (
        data["verdict"],
        f"{main['before_ms']['median']:.2f} ms",
        f"{main['after_ms']['median']:.2f} ms",
        f"{main['speedup']:.1f}x",
        main["verified"],
        f"n={main['after_ms']['n']}",
        f"{data['cell']['peak_allocated_bytes'] / 2**20:.0f} MB",
        f"{main['graph_bytes'] / 2**20:.2f} MB",
        f"{main['gpu_busy_share']:.0%}",
        data["findings"][0]["code"],
        f"line {data['findings'][0]['line']}",
        data["findings"][0]["message"],
    ):
        assert figure in html, figure
        assert figure in text, figure


def test_findings_beyond_three_are_folded_not_lost() -> None:
    html = build_report(cell(region()), tuple(host_sync(line) for line in range(1, 9))).to_html()
    folded = html.index("5 more findings")
    assert html[:folded].count("GR101 host-sync") == 3
    assert html[folded:].count("GR101 host-sync") == 5


def test_capture_decisions_are_in_a_details_block() -> None:
    html = REPORTS["sample"].to_html()
    assert "<summary>1 capture decision</summary>" in html
    assert "60 expected calls save 212 ms; the capture costs 41 ms" in html


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("ground", ["#ffffff", "#111111", "#1e1e1e"])
@pytest.mark.parametrize("tone", [*TONES.values(), *SPENT.values()])
def test_bars_stand_out_in_light_and_dark_themes(tone: str, ground: str) -> None:
    assert contrast(tone, ground) >= 3


@pytest.mark.parametrize("fill", list(FILLS.values()))
def test_badges_are_readable(fill: str) -> None:
    assert contrast(fill, "#ffffff") >= 4.5


def test_only_badges_and_keys_of_a_picture_set_a_text_colour() -> None:
    for style in Page(REPORTS["sample"].to_html()).styles():
        assert "color" not in style or style.get("background", style["color"]) in {*FILLS.values(), *SPENT.values()}


def test_no_digest_and_no_backtick_is_shown() -> None:
    """In HTML, in a terminal with colors and in the view; plain text has nothing but backticks for code."""
    old, new = "loss.item()\n", "loss.detach()\n"
    diff = unified_diff(old, new, "In[4]")
    finding = host_sync(message="`loss.item()` makes it wait", fix=Fix(id=1, diff=diff, verified=True))
    report = build_report(cell(region()), [finding])
    html, text, plain = report.to_html(), report.to_text(color=True), report.to_text()
    assert "sha256" in str(report.to_dict()) and "`loss.item()`" in str(report.to_dict())
    for shown in (html, text, plain, str(build_view(report).data)):
        assert "sha256" not in shown
    assert "<code>loss.item()</code> makes it wait" in html and "`" not in html and "`" not in text
    assert "`loss.item()` makes it wait" in plain
