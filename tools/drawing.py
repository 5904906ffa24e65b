"""Drawings as SVG: shapes and texts, in colours that follow the reader's light or dark scheme.

The ground is drawn too, so that nothing depends on the page around.
"""

from __future__ import annotations

import math
from html import escape

WIDTH = 720

Point = tuple[float, float]

# Class -> ground and line, in the light scheme and in the dark one.
_INKS = {
    "plain": ("#f6f8fa", "#818b98", "#161b22", "#7d8590"),
    "blue": ("#ddf4ff", "#0969da", "#12243d", "#58a6ff"),
    "green": ("#dafbe1", "#1a7f37", "#12261e", "#3fb950"),
    "orange": ("#fff1e5", "#bc4c00", "#2f1d0c", "#f0883e"),
    "purple": ("#fbefff", "#8250df", "#241a38", "#bc8cff"),
}
_MONO = "font-family:ui-monospace,'DejaVu Sans Mono',monospace;font-size:13px"
_TIP = (
    '<marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9" '
    'markerUnits="userSpaceOnUse" orient="auto-start-reverse">'
    '<path class="tip" d="M0 0 10 5 0 10z"/></marker>'
)


def style() -> str:
    light = ["text{fill:#1f2328}.ground{fill:#fff;stroke:#d1d9e0}.dim,.tip{fill:#59636e}"]
    dark = ["text{fill:#e6edf3}.ground{fill:#0d1117;stroke:#3d444d}.dim,.tip{fill:#9198a1}"]
    for name, (ground, line, dark_ground, dark_line) in _INKS.items():
        light.append(f".{name}{{fill:{ground};stroke:{line}}}.to-{name}{{stroke:{line};fill:none}}")
        dark.append(
            f".{name}{{fill:{dark_ground};stroke:{dark_line}}}.to-{name}{{stroke:{dark_line}}}"
        )
    rules = [
        "text{font:15px system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}",
        f".head{{font-weight:600}}.small{{font-size:13px}}.mono{{{_MONO}}}",
        *light,
        f"@media(prefers-color-scheme:dark){{{''.join(dark)}}}",
        ".strong{stroke-width:2.5}.dashed{stroke-dasharray:5 4}",
    ]
    return "\n".join(rules)


class Drawing:
    """Shapes, one after the other."""

    def __init__(self, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '  # noqa: ISC004
            f'width="{WIDTH}" height="{height}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            f"<style>{style()}</style><defs>{_TIP}</defs>",
        ]
        edge = {"x": 0.5, "y": 0.5, "width": WIDTH - 1, "height": height - 1}
        self.add("rect", "", **{"class_": "ground", "rx": 8, **edge})

    def add(self, tag: str, text: str = "", **attributes: object) -> None:
        written = "".join(
            f' {name.rstrip("_").replace("_", "-")}="{_number(value)}"'
            for name, value in attributes.items()
        )
        self._parts.append(
            f"<{tag}{written}>{escape(text)}</{tag}>" if text else f"<{tag}{written}/>"
        )

    def text(self, at: Point, *lines: str, kind: str = "", anchor: str = "start") -> None:
        for number, line in enumerate(lines):
            self.add("text", line, x=at[0], y=at[1] + 19 * number, class_=kind, text_anchor=anchor)

    def box(self, at: Point, size: Point, kind: str, *lines: str) -> None:
        """Lines of text in the middle; the first is the heading."""
        self.add("rect", x=at[0], y=at[1], width=size[0], height=size[1], rx=6, class_=kind)
        middle, top = at[0] + size[0] / 2, at[1] + size[1] / 2 - 19 * (len(lines) - 1) / 2 + 5
        for number, line in enumerate(lines):
            style = "head" if number == 0 else "small"
            self.text((middle, top + 19 * number), line, kind=style, anchor="middle")

    def line(self, *points: Point, kind: str = "to-plain", **attributes: object) -> None:
        path = "M" + " L".join(f"{_number(x)} {_number(y)}" for x, y in points)
        self.add("path", d=path, class_=kind, **attributes)

    def arrow(self, *points: Point, kind: str = "to-plain", both: bool = False) -> None:
        begin = {"marker_start": "url(#tip)"} if both else {}
        self.line(*points, kind=kind, marker_end="url(#tip)", **begin)

    def broker(self, at: Point, name: str, kind: str, radius: float = 19) -> None:
        self.add("circle", cx=at[0], cy=at[1], r=radius, class_=kind)
        self.text((at[0], at[1] + 5), name, kind="small", anchor="middle")

    def __str__(self) -> str:
        return "\n".join([*self._parts, "</svg>"]) + "\n"


def _number(value: object) -> object:
    return f"{value:.1f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def towards(begin: Point, end: Point, short: float) -> tuple[Point, Point]:
    """The line between two brokers, from edge to edge."""
    dx, dy = end[0] - begin[0], end[1] - begin[1]
    share = short / math.hypot(dx, dy)
    return (begin[0] + dx * share, begin[1] + dy * share), (
        end[0] - dx * share,
        end[1] - dy * share,
    )
