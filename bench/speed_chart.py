"""The measured table and picture of README.md, from the samples of ./dev bench.

usage: speed_chart.py collect SAMPLES    from the file of ./dev bench --json, writes docs/speed.json
       speed_chart.py draw               from docs/speed.json, writes docs/speed.svg and prints the table

A figure of a library is the median, over the rounds, of its time divided by Cairn's time in the round.
"""

import json
import statistics
import sys
from datetime import date
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SPEED = ROOT / "docs/speed.json"
PICTURE = ROOT / "docs/speed.svg"
PEERS = {"dcp": "DCP", "safetensors": "safetensors", "torch.save": "torch.save"}

# Title, figure of bench.py, whether the figure is a rate, Cairn's own value: scale and form.
FIGURES = (
    ("save", "save rate", True, 1e-9, "{:.2f} GB/s"),
    ("load, cold page cache", "cold load rate", True, 1e-9, "{:.2f} GB/s"),
    ("load, warm page cache", "warm load rate", True, 1e-9, "{:.2f} GB/s"),
    ("save 10,000 small tensors", "small save", False, 1, "{:.1f} us each"),
    ("load 10,000 small tensors", "small load", False, 1, "{:.1f} us each"),
)

BAR_HEIGHT, BAR_GAP, GROUP_GAP, LEFT, WIDTH = 14, 3, 16, 190, 720
COLORS = {"Cairn": "#c2410c", "DCP": "#475569", "safetensors": "#64748b", "torch.save": "#94a3b8"}


def collected(samples: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """The medians of each figure."""
    rows = []
    for title, figure, is_rate, scale, form in FIGURES:
        ours = samples[figure]["cairn"]
        times = {}
        for peer, name in PEERS.items():
            pairs = zip(ours, samples[figure][peer], strict=True)
            times[name] = round(statistics.median(o / t if is_rate else t / o for o, t in pairs), 2)
        rows.append({"title": title, "cairn": form.format(statistics.median(ours) * scale), "times": times})
    return {"date": str(date.today()), "rounds": len(samples["save rate"]["cairn"]), "rows": rows}


def table(speed: dict[str, Any]) -> str:
    """The table of README.md."""
    lines = [f"| | Cairn | {' | '.join(f'{name} takes' for name in PEERS.values())} |", "|---|---|---|---|---|"]
    for row in speed["rows"]:
        cells = [f"{row['times'][name]:.2f} times" for name in PEERS.values()]
        lines.append(f"| {row['title']} | {row['cairn']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def picture(speed: dict[str, Any]) -> str:
    """The table as bars: time as a multiple of Cairn's."""
    longest = max(max(row["times"].values()) for row in speed["rows"])
    scale = (WIDTH - LEFT - 90) / max(longest, 1)
    parts: list[str] = []
    y = 30
    for row in speed["rows"]:
        middle = y + (BAR_HEIGHT + BAR_GAP) * 2
        parts.append(f'<text x="{LEFT - 12}" y="{middle}" text-anchor="end">{escape(row["title"])}</text>')
        for name, times in {"Cairn": 1.0, **row["times"]}.items():
            width = max(times * scale, 1)
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" fill="{COLORS[name]}"/>'
                f'<text x="{LEFT + width + 6:.1f}" y="{y + BAR_HEIGHT - 3}" class="bar">{name} {times:.2f}</text>'
            )
            y += BAR_HEIGHT + BAR_GAP
        y += GROUP_GAP
    style = "text{font:13px sans-serif;fill:#334155}.bar{font-size:11px}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img" '
        f'aria-label="Times of saves and loads as multiples of Cairn\'s">\n<style>{style}</style>\n'
        f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>\n'
        f'<text x="{LEFT}" y="18">Time as a multiple of Cairn\'s; shorter is faster</text>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def main() -> None:
    if sys.argv[1] == "collect":
        SPEED.write_text(json.dumps(collected(json.loads(Path(sys.argv[2]).read_text())), indent=1) + "\n")
    speed = json.loads(SPEED.read_text())
    PICTURE.write_text(picture(speed))
    print(table(speed), end="")


if __name__ == "__main__":
    main()
