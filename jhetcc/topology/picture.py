# SPDX-License-Identifier: Apache-2.0
"""A topology as an SVG picture, for a browser or a page. Pure."""

from __future__ import annotations

from html import escape

from jhetcc.topology.layout import FONT, LINE, PAD, Box, Way, lay_out
from jhetcc.topology.values import Topology

__all__ = ["svg"]

# Okabe and Ito's colours, which colour-blind people tell apart; repeated where there are more clusters.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999933")
_PLAIN = "#666666"
_FILLS = {"picture": "#ffffff", "host": "#f7f7f7", "device": "#ffffff", "nic": "#ffffff", "network": "#eeeeee"}
_DASHES = ' stroke-dasharray="4 3"'


def svg(topology: Topology) -> str:
    """The picture as the text of an SVG file.

    Every box is a ``rect`` with its key, its kind and the key of the box around it in ``data-key``, ``data-kind`` and ``data-parent``.
    """
    picture = lay_out(topology)
    around = picture.boxes[0]
    size = (
        f'width="{_n(around.width)}" height="{_n(around.height)}" viewBox="0 0 {_n(around.width)} {_n(around.height)}"'
    )
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="{FONT:g}">']
    outer = [box for box in picture.boxes if box.kind != "network"]
    lines += [_rect(box) for box in outer]
    lines += [_polyline(way) for way in picture.ways]
    lines += [_rect(box) for box in picture.boxes if box.kind == "network"]  # above the ways that pass behind them
    lines += [text for box in picture.boxes for text in _texts(box)]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _colour(cluster: int | None) -> str:
    return _PLAIN if cluster is None else _COLOURS[cluster % len(_COLOURS)]


def _n(value: float) -> str:
    return f"{value:.10g}"  # a picture of many hosts is taller than six digits


def _rect(box: Box) -> str:
    colour = _colour(box.cluster)
    fill = f'fill="{_FILLS[box.kind]}"' if box.kind in _FILLS else f'fill="{colour}" fill-opacity="0.12"'
    stroke = f'stroke="{colour}" stroke-width="{3 if box.is_marked else 1}"' + _DASHES * box.is_faint
    return (
        f'<rect x="{_n(box.x)}" y="{_n(box.y)}" width="{_n(box.width)}" height="{_n(box.height)}" rx="3" {fill} {stroke} '
        f'data-key="{escape(box.key)}" data-kind="{box.kind}" data-parent="{escape(box.parent)}"/>'
    )


def _polyline(way: Way) -> str:
    points = " ".join(f"{_n(x)},{_n(y)}" for x, y in way.points)
    return (
        f'<polyline points="{points}" fill="none" stroke="{_colour(way.cluster)}" stroke-width="{1 if way.kind == "path" else 2}" '
        f'data-key="{escape(way.key)}" data-kind="{way.kind}"/>'
    )


def _texts(box: Box) -> list[str]:
    first = box.y + PAD + FONT  # the base line, so that the letters begin below the edge
    return [
        f'<text x="{_n(box.x + PAD)}" y="{_n(first + LINE * n)}" data-of="{escape(box.key)}">{escape(line)}</text>'
        for n, line in enumerate(box.lines)
    ]
