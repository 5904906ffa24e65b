"""Turn a command's output into a picture of a terminal, for the README.

python tools/capture.py docs/images/demo.svg dynatops demo --brokers 16 --seconds 15
"""

from __future__ import annotations

import subprocess
import sys
from html import escape
from pathlib import Path

COLUMN_PX, LINE_PX, MARGIN_PX = 8.4, 19, 18
COLOURS = {"◆": "#f2c14e", "●": "#7bd88f", "○": "#8a8f98"}
FONT = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def coloured(line: str) -> str:
    """Marks of the tree in their colours, with the words that explain them."""
    for mark, colour in COLOURS.items():
        if mark in line:
            before, after = line.split(mark, 1)
            return f'{escape(before)}<tspan fill="{colour}">{escape(mark + after)}</tspan>'
    return escape(line)


def picture(lines: list[str]) -> str:
    width = round(2 * MARGIN_PX + COLUMN_PX * max(map(len, lines)))
    height = 2 * MARGIN_PX + LINE_PX * len(lines)
    texts = [
        f'<text x="{MARGIN_PX}" y="{MARGIN_PX + LINE_PX * (i + 0.75):g}" xml:space="preserve"'
        f"{' fill=' + chr(34) + '#9ecbff' + chr(34) if line.startswith('$ ') else ''}>"
        f"{coloured(line)}</text>"
        for i, line in enumerate(lines)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="{FONT}" font-size="14" fill="#d7dae0">\n'
        f'<rect width="100%" height="100%" rx="8" fill="#1c1f26"/>\n'
        + "\n".join(texts)
        + "\n</svg>\n"
    )


def main() -> int:
    target, *command = sys.argv[1:]
    program = [str(Path(sys.executable).parent / command[0]), *command[1:]]
    outcome = subprocess.run(program, capture_output=True, text=True, check=True)
    lines = [f"$ {' '.join(command)}", *outcome.stdout.rstrip().split("\n")]
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_text(picture(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
