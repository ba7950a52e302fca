"""A picture of a collector's costs per rank, by the number of ranks, from the output of `benchmarks/scale.py --json`.

python benchmarks/scale.py --json > scale.jsonl; python benchmarks/scale_picture.py scale.jsonl docs/images/scale.svg
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 300, 70, 50
KEY, TITLE, COLOUR = "per_rank_us", "CPU of the collector, µs per rank and second", "#1f6feb"


def picture(rows: list[dict[str, float]]) -> str:
    """Return an SVG. ``rows``: results of single jobs, by rising number of ranks."""
    low, high = math.log10(rows[0]["ranks"]), math.log10(rows[-1]["ranks"])
    largest = max(row[KEY] for row in rows)
    step = 5 if largest <= 40 else 20
    most = step * math.ceil(largest / step)

    def x(ranks: float) -> float:
        return LEFT + (WIDTH - LEFT - 40) * (math.log10(ranks) - low) / (high - low)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 40) * value / most

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/><text x="{LEFT}" y="22" font-size="14">{TITLE}</text>',
    ]
    for value in range(0, most + 1, step):
        parts.append(f'<path d="M{LEFT} {y(value):.0f}H{WIDTH - 40}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.0f}" text-anchor="end">{value}</text>')
    points = " ".join(f"{x(row['ranks']):.0f},{y(row[KEY]):.0f}" for row in rows)
    parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOUR}" stroke-width="2"/>')
    for row in rows:
        at_x, at_y = x(row["ranks"]), y(row[KEY])
        parts.append(f'<circle cx="{at_x:.0f}" cy="{at_y:.0f}" r="4" fill="{COLOUR}"/>')
        parts.append(f'<text x="{at_x:.0f}" y="{at_y - 10:.0f}" text-anchor="middle">{row[KEY]}</text>')
        parts.append(f'<text x="{at_x:.0f}" y="{HEIGHT - 28}" text-anchor="middle">{row["ranks"]:,.0f}</text>')
    parts.append(
        f'<text x="{(WIDTH + LEFT) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">ranks of one job</text></svg>'
    )
    return "\n".join(parts) + "\n"


def main() -> int:
    source, target = map(Path, sys.argv[1:3])
    found = [json.loads(line) for line in source.read_text().splitlines() if line.startswith("{")]
    target.write_text(picture(sorted((row for row in found if row["jobs"] == 1), key=lambda row: row["ranks"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
