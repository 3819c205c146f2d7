"""Tables of seconds: medians with their range, and as multiples of a yardstick of the same rounds."""

import statistics
from collections.abc import Mapping, Sequence

Samples = Mapping[str, Mapping[str, Sequence[float]]]  # by figure and peer: a number for each round

TITLE_WIDTH, WIDTH = 38, 20


def spread(values: Sequence[float], form: str) -> str:
    """Returns "median (least-greatest)"."""
    if not values:
        return "-"
    median, least, most = (form.format(it) for it in (statistics.median(values), min(values), max(values)))
    return f"{median} ({least}-{most})"


def multiple(values: Sequence[float], yardstick: Sequence[float]) -> str:
    """Returns the median over the rounds of value / yardstick."""
    quotients = [value / unit for value, unit in zip(values, yardstick, strict=False)]
    return f"{statistics.median(quotients):.2f}" if quotients else "-"


def head(title: str, peers: Sequence[str]) -> str:
    return f"{title:{TITLE_WIDTH}}" + "".join(f"{peer:>{WIDTH}}" for peer in peers)


def row(title: str, cells: Sequence[str], target: str = "") -> str:
    return f"{title:{TITLE_WIDTH}}" + "".join(f"{cell:>{WIDTH}}" for cell in cells) + (target and f"   {target}")


def seconds_and_multiples(
    samples: Samples, titles: Mapping[str, str], peers: Sequence[str], yardstick: str
) -> list[str]:
    """Returns two rows for each figure in `titles`: seconds, and multiples of the peer `yardstick`."""
    lines = []
    for figure, title in titles.items():
        per_peer = samples.get(figure, {})
        lines.append(row(f"{title}, s", [spread(per_peer.get(peer, []), "{:.2f}") for peer in peers]))
        unit = per_peer.get(yardstick, [])
        lines.append(row(f"  of {yardstick}", [multiple(per_peer.get(peer, []), unit) for peer in peers]))
    return lines
