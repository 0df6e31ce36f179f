"""What the tests ask of a page that shows a report."""

from __future__ import annotations

import re
from typing import Any

VIEW = "document.querySelector('.grape-report').grape"

AXE_RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}}


def fragment_page(html: str) -> str:
    """A page with nothing but a report, as a notebook shows it; in the colours that the browser asks for."""
    style = "margin: 0; font-family: sans-serif; color: CanvasText; background: Canvas"
    head = '<meta name="color-scheme" content="light dark"><title>Report</title>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body style="{style}"><main>{html}</main></body></html>'


def wait_for_view(page: Any) -> None:
    """Until it is drawn, its pictures unfolded where they are folded."""
    page.wait_for_selector(".grape-report", state="attached")
    unfold(page)
    page.wait_for_function(f"{VIEW}.frames.length > 0")


def unfold(page: Any) -> None:
    """Open what stands folded in every view of a notebook."""
    page.evaluate("() => document.querySelectorAll('.grape-more').forEach(fold => { fold.open = true; })")
    settle(page)


def settle(page: Any) -> None:
    """Until the last change is drawn."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def span(page: Any) -> tuple[float, float]:
    """The time in view, in nanoseconds."""
    start, end = page.evaluate(f"[{VIEW}.viewport.from, {VIEW}.viewport.to]")
    return start, end


def pixels(page: Any, label: str) -> str:
    """The picture of one timeline, as a data URL."""
    settle(page)
    return str(page.evaluate(f"document.querySelector('canvas[data-timeline={label}]').toDataURL()"))


def colours_in(page: Any, label: str) -> int:
    """How many different colours one timeline's picture has; a blank one has 1."""
    settle(page)
    script = """label => {
        const canvas = document.querySelector(`canvas[data-timeline=${label}]`);
        const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(image.data.buffer)).size;
    }"""
    return int(page.evaluate(script, label))


def event_point(page: Any, label: str, index: int) -> tuple[float, float]:
    """Where in its canvas an event is drawn: the middle of its bar."""
    script = f"""([label, index]) => {{
        const picture = {VIEW}.pictures.find(p => p.timeline.label === label);
        const t = picture.timeline;
        const middle = (t.startNs(index) + t.endNs(index)) / 2;
        return [picture.xAt(middle), 18 + 16 * picture.rowOf(index) + 8];
    }}"""
    x, y = page.evaluate(script, [label, index])
    return x, y


def figures(page: Any) -> dict[str, str]:
    """The figures of the chosen region, as the page shows them."""
    script = """() => Object.fromEntries(
        [...document.querySelector('.grape-report').querySelectorAll('.grape-figures > div')]
        .map(one => [one.querySelector('dt').textContent, one.querySelector('dd').textContent]))"""
    found: dict[str, str] = page.evaluate(script)
    return found


def words(html: str) -> str:
    """The text of HTML, without its tags."""
    from html import unescape

    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", html)))
