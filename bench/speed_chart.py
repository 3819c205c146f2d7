"""The measured tables and the picture of README.md, from the samples of ./dev bench --plot.

docs/speed.json holds the numbers; docs/speed.svg and the tables of README.md show them. Run as a program, the module
draws docs/speed.svg from docs/speed.json and prints the tables.

A number of a library is its time as a multiple of Cairn's: the median over the rounds of the quotient in the round. A
round of asynchronous saves has several samples: there the number is the quotient of the medians.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SPEED = ROOT / "docs/speed.json"
PICTURE = ROOT / "docs/speed.svg"

Samples = Mapping[str, Mapping[str, Sequence[float]]]  # by figure and peer


@dataclass(frozen=True)
class Figure:
    title: str
    figure: str  # of bench.py
    form: str  # of Cairn's own value
    scale: float = 1
    is_rate: bool = False


@dataclass(frozen=True)
class Group:
    """Figures with the same libraries: a table of README.md."""

    ours: str  # the peer of bench.py that is Cairn
    peers: Mapping[str, str]  # peers of bench.py, and their names
    figures: Sequence[Figure]
    in_pairs: bool  # a sample of Cairn and one of the peer for each round


GROUPS = (
    Group(
        "cairn",
        {"dcp": "DCP", "safetensors": "safetensors", "torch.save": "torch.save"},
        (
            Figure("save", "save rate", "{:.2f} GB/s", 1e-9, is_rate=True),
            Figure("load, cold page cache", "cold load rate", "{:.2f} GB/s", 1e-9, is_rate=True),
            Figure("load, warm page cache", "warm load rate", "{:.2f} GB/s", 1e-9, is_rate=True),
            Figure("save 10,000 small tensors", "small save", "{:.1f} us each"),
            Figure("load 10,000 small tensors", "small load", "{:.1f} us each"),
        ),
        in_pairs=True,
    ),
    Group(
        "cairn thread",
        {"dcp thread": "DCP, threads", "dcp process": "DCP, process", "torch_ckpt": "torch_checkpointing"},
        (
            Figure("async: trainer blocked", "async blocked", "{:.2f} copies"),
            Figure("async: trainer's loss in all", "async lost, large", "{:.2f} copies"),
            Figure("async: small, loss in all", "async lost, small", "{:.0f} ms"),
            Figure("async: until durable", "async durable rate", "{:.2f} GB/s", 1e-9, is_rate=True),
        ),
        in_pairs=False,
    ),
)

BAR_HEIGHT, BAR_GAP, GROUP_GAP, LEFT, WIDTH = 14, 3, 16, 190, 720
BAR_MAX = 400
TIMES_MAX = 10.0  # a longer bar is cut, and has a gap near its end
COLORS = ("#c2410c", "#475569", "#64748b", "#94a3b8")  # Cairn, and its peers


def times_of(group: Group, figure: Figure, samples: Samples) -> dict[str, float]:
    """The times of the peers as multiples of Cairn's. A peer without samples has failed, and is left out."""
    ours = samples[figure.figure][group.ours]
    times = {}
    for peer, name in group.peers.items():
        theirs = samples[figure.figure].get(peer)
        if not theirs:
            continue
        pairs = zip(ours, theirs, strict=True) if group.in_pairs else [tuple(map(statistics.median, (ours, theirs)))]
        times[name] = round(statistics.median(o / t if figure.is_rate else t / o for o, t in pairs), 2)
    return times


def collected(group: Group, samples: Samples) -> dict[str, Any]:
    """The table of a group, as docs/speed.json has it."""
    rows = []
    for figure in group.figures:
        ours = statistics.median(samples[figure.figure][group.ours]) * figure.scale
        times = times_of(group, figure, samples)
        rows.append({"title": figure.title, "cairn": figure.form.format(ours), "times": times})
    return {"date": str(date.today()), "peers": list(group.peers.values()), "rows": rows}


def table(speed: Mapping[str, Any]) -> str:
    """A table of README.md."""
    peers = speed["peers"]
    lines = [f"| | Cairn | {' | '.join(f'{name} takes' for name in peers)} |", "|---" * (2 + len(peers)) + "|"]
    for row in speed["rows"]:
        cells = [f"{row['times'][name]:.2f} times" if name in row["times"] else "fails" for name in peers]
        lines.append(f"| {row['title']} | {row['cairn']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def bar(times: float, y: int, name: str, color: str) -> str:
    width = max(min(times, TIMES_MAX) / TIMES_MAX * BAR_MAX, 1)
    rect = f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" fill="{color}"/>'
    if times > TIMES_MAX:
        rect += f'<rect x="{LEFT + width - 16:.1f}" y="{y}" width="5" height="{BAR_HEIGHT}" fill="#ffffff"/>'
    label = f"{escape(name)} {times:.2f}"
    return rect + f'<text x="{LEFT + width + 6:.1f}" y="{y + BAR_HEIGHT - 3}" class="bar">{label}</text>'


def picture(tables: Sequence[Mapping[str, Any]]) -> str:
    """The tables as bars: time as a multiple of Cairn's."""
    parts: list[str] = []
    y = 30
    for speed in tables:
        for row in speed["rows"]:
            bars = {"Cairn": 1.0, **row["times"]}
            middle = y + (BAR_HEIGHT + BAR_GAP) * len(bars) // 2
            parts.append(f'<text x="{LEFT - 12}" y="{middle}" text-anchor="end">{escape(row["title"])}</text>')
            for name, times in bars.items():
                color = COLORS[["Cairn", *speed["peers"]].index(name)]
                parts.append(bar(times, y, name, color))
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


def draw(tables: Sequence[Mapping[str, Any]]) -> None:
    """Writes docs/speed.svg, and prints the tables for README.md."""
    PICTURE.write_text(picture(tables))
    print("\n".join(table(speed) for speed in tables), end="")


def plot(samples: Samples) -> None:
    """Writes docs/speed.json and docs/speed.svg, and prints the tables for README.md.

    A table whose figures this run did not measure keeps its numbers.
    """
    tables = json.loads(SPEED.read_text())
    for index, group in enumerate(GROUPS):
        if all(figure.figure in samples for figure in group.figures):
            tables[index : index + 1] = [collected(group, samples)]
    SPEED.write_text(json.dumps(tables, indent=1) + "\n")
    draw(tables)


if __name__ == "__main__":
    draw(json.loads(SPEED.read_text()))
