# SPDX-License-Identifier: Apache-2.0
"""What ``jhetcc demo failover`` measured as an SVG picture: rates of the paths, step times and losses over time, with marks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Curve", "Mark", "Panel", "svg"]

# Okabe and Ito's colours, which colour-blind people tell apart.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999933", "#000000")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _GAP = 760, 170, 70, 150, 40, 46
_TICKS = 4


@dataclass(frozen=True)
class Curve:
    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashes: bool = False


@dataclass(frozen=True)
class Panel:
    """One diagram; all of a picture share the axis of time, in seconds."""

    title: str
    curves: Sequence[Curve]


@dataclass(frozen=True)
class Mark:
    """Something that happened: taken away (``is_back`` false) or given back."""

    time: float
    text: str
    is_back: bool


def svg(title: str, panels: Sequence[Panel], marks: Sequence[Mark]) -> str:
    """The picture as the text of an SVG file; each curve is a ``polyline`` with its name in ``data-name``."""
    end = max((x for panel in panels for curve in panel.curves for x, _ in curve.points), default=1.0) or 1.0
    width, height = _LEFT + _WIDTH + _RIGHT, _TOP + len(panels) * (_HEIGHT + _GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        lines += _panel(panel, _TOP + number * (_HEIGHT + _GAP), end, marks)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _n(value: float) -> str:
    return f"{value:.6g}"


def _panel(panel: Panel, top: float, end: float, marks: Sequence[Mark]) -> list[str]:
    highest = max((y for curve in panel.curves for _, y in curve.points), default=1.0) or 1.0
    bottom = top + _HEIGHT

    def x(time: float) -> str:
        return _n(round(_LEFT + _WIDTH * time / end, 1))

    def y(value: float) -> str:
        return _n(round(bottom - _HEIGHT * value / highest, 1))

    lines = [
        f'<text x="{_LEFT}" y="{_n(top - 6)}" font-weight="bold">{escape(panel.title)}</text>',
        f'<rect x="{_LEFT}" y="{_n(top)}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#999999"/>',
    ]
    for tick in range(_TICKS + 1):
        value, time = highest * tick / _TICKS, end * tick / _TICKS
        lines.append(
            f'<text x="{_LEFT - 6}" y="{y(value)}" text-anchor="end" dominant-baseline="middle">{value:.3g}</text>'
        )
        lines.append(f'<text x="{x(time)}" y="{_n(bottom + 14)}" text-anchor="middle">{time:.3g} s</text>')
    for mark in marks:
        colour, dash = ("#009e73", ' stroke-dasharray="2 3"') if mark.is_back else ("#cc0000", "")
        lines.append(
            f'<line x1="{x(mark.time)}" x2="{x(mark.time)}" y1="{_n(top)}" y2="{_n(bottom)}" stroke="{colour}"{dash}>'
            f"<title>{escape(mark.text)}</title></line>"
        )
    for number, curve in enumerate(panel.curves):
        points = " ".join(f"{x(time)},{y(value)}" for time, value in curve.points)
        dash = ' stroke-dasharray="5 4"' if curve.dashes else ""
        lines.append(
            f'<polyline points="{points}" fill="none" stroke="{curve.colour}" stroke-width="1.5"{dash} '
            f'data-name="{escape(curve.name)}"/>'
        )
        label = f'x="{_LEFT + _WIDTH + 8}" y="{_n(top + 12 + 14 * number)}" fill="{curve.colour}"'
        lines.append(f"<text {label}>{escape(curve.name)}</text>")
    return lines
