"""Plots as SVG, for light and for dark pages: dots on a logarithmic scale, and lines over powers of ten."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["DARK", "LIGHT", "Palette", "dots", "lines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    name: str
    ground: str
    ink: str
    faint: str
    colors: tuple[str, ...]


LIGHT = Palette(
    name="light",
    ground="#ffffff",
    ink="#1f2328",
    faint="#d1d9e0",
    colors=("#8250df", "#0969da", "#bc4c00", "#1a7f37", "#6e7781"),
)
DARK = Palette(
    name="dark",
    ground="#0d1117",
    ink="#e6edf3",
    faint="#30363d",
    colors=("#bc8cff", "#58a6ff", "#f0883e", "#3fb950", "#8b949e"),
)
WIDTH, LEFT, RIGHT, TOP, LINE = 860, 300, 30, 56, 17
SHAPES = ("circle", "square", "diamond", "triangle", "cross")


def dots(rows: Mapping[str, Mapping[str, float]], series: Sequence[str], axis: str, palette: Palette) -> str:
    """A line for each row, on it a mark for each of `series` that the row has."""
    values = [value for row in rows.values() for value in row.values()] or [1.0]
    low, high = min(0.5, *values), max(2.0, *values)
    height = TOP + LINE * len(rows) + 40

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / low) / math.log(high / low)

    parts = [*_legend(series, palette)]
    bottom = TOP + LINE * len(rows)
    for tick in _ticks(low, high):
        strong = palette.ink if tick == 1 else palette.faint
        parts.append(_line(x(tick), TOP - 6, x(tick), bottom, strong))
        parts.append(_text(x(tick), bottom + 14, f"{tick:g}x", palette.ink, "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, bottom + 32, axis, palette.ink, "middle"))
    for number, (name, row) in enumerate(rows.items()):
        y = TOP + LINE * number + LINE / 2
        parts.append(_text(LEFT - 8, y + 4, name[:46], palette.ink, "end"))
        parts += [
            _mark(x(row[one]), y, k, palette, f"{name}, {one}: {row[one]:.2f}x")
            for k, one in enumerate(series)
            if one in row
        ]
    return _svg(height, parts, palette)


def lines(series: Mapping[str, Sequence[tuple[float, float]]], across: str, up: str, palette: Palette) -> str:
    """Both axes logarithmic; a line for each of `series`, with a mark at each point."""
    points = [point for one in series.values() for point in one] or [(1.0, 1.0)]
    (left, right), (low, high) = ((min(axis), max(axis)) for axis in zip(*points, strict=True))
    right, high = max(right, left * 10), max(high, low * 2)
    height, base, start = 360, 310, 90

    def x(value: float) -> float:
        return start + (WIDTH - start - RIGHT) * math.log(value / left) / math.log(right / left)

    def y(value: float) -> float:
        return base - (base - TOP) * math.log(value / low) / math.log(high / low)

    parts = [*_legend(list(series), palette)]
    for tick in _ticks(left, right, decades=True):
        parts += [_line(x(tick), TOP, x(tick), base, palette.faint)]
        parts += [_text(x(tick), base + 16, f"{tick:,g}", palette.ink, "middle")]
    for tick in _ticks(low, high, decades=high / low > 50):
        parts += [_line(start, y(tick), WIDTH - RIGHT, y(tick), palette.faint)]
        parts += [_text(start - 6, y(tick) + 4, f"{tick:,g}", palette.ink, "end")]
    parts += [_text((start + WIDTH) / 2, base + 36, across, palette.ink, "middle"), _text(8, TOP - 12, up, palette.ink)]
    for k, (name, line) in enumerate(series.items()):
        way = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line)
        color = palette.colors[k % len(palette.colors)]
        parts.append(f'<polyline points="{way}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        parts += [_mark(x(a), y(b), k, palette, f"{name}, {a:g}: {b:.3g}") for a, b in line]
    return _svg(height, parts, palette)


def _ticks(low: float, high: float, *, decades: bool = False) -> list[float]:
    steps = (1,) if decades else (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high * 1.0001]


def _legend(series: Sequence[str], palette: Palette) -> list[str]:
    """In two lines where one is too short."""
    parts, at, y = [], 12.0, 14.0
    for k, name in enumerate(series):
        wide = 30 + 6.6 * len(name)
        if at + wide > WIDTH:
            at, y = 12.0, y + 18
        parts += [_mark(at, y, k, palette, name), _text(at + 10, y + 4, name, palette.ink)]
        at += wide
    return parts


def _mark(x: float, y: float, k: int, palette: Palette, title: str) -> str:
    """Shapes differ as well as colors do."""
    color, shape, r = palette.colors[k % len(palette.colors)], SHAPES[k % len(SHAPES)], 4.5
    ways = {
        "square": f"M{x - r:.1f} {y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}z",
        "diamond": f"M{x:.1f} {y - r - 1:.1f}l{r + 1} {r + 1}l{-r - 1} {r + 1}l{-r - 1} {-r - 1}z",
        "triangle": f"M{x:.1f} {y - r - 1:.1f}l{r + 1} {2 * r}h{-2 * r - 2}z",
        "cross": f"M{x - r:.1f} {y - 1:.1f}h{2 * r}v2h{-2 * r}z",
    }
    told = f"<title>{escape(title)}</title>"
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" fill="{color}">{told}</circle>'
    return f'<path d="{ways[shape]}" fill="{color}">{told}</path>'


def _line(x: float, y: float, to_x: float, to_y: float, color: str) -> str:
    return f'<path d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}" stroke="{color}"/>'


def _text(x: float, y: float, text: str, color: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: float, parts: Sequence[str], palette: Palette) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
        f'height="{height:g}" font-family="system-ui, sans-serif" font-size="12">'
    )
    ground = f'<rect width="{WIDTH}" height="{height:g}" fill="{palette.ground}"/>'
    return "\n".join([head, ground, *parts, "</svg>"]) + "\n"
