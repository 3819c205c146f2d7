"""The steps of a save by many ranks, simulated by one process (scale.cc): processor time, peak memory, bytes."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

SHARDS = 1000  # of a rank


def measure_scale(program: Path, ranks: list[int], shape: str) -> Iterator[tuple[str, str, float]]:
    """Yields figure, column and value. `shape`: ``own``, ``shared`` or ``common``, as in scale.cc."""
    for count in ranks:
        command = [str(program), str(count), str(SHARDS), shape]
        steps = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        for step in steps:
            figure = f"scale {shape}: {count:,} ranks: {step['step']}"
            yield figure, "user", step["user"]
            yield figure, "system", step["system"]
            yield figure, "MiB", step["mib"]
            yield figure, "bytes", step["bytes"]


def scale_lines(by_figure: dict[str, dict[str, list[float]]]) -> list[str]:
    """Returns the rows; of several rounds, the best time."""
    lines = []
    for figure, columns in by_figure.items():
        if figure.startswith("scale "):
            user, system, mib, size = (min(columns[name]) for name in ("user", "system", "MiB", "bytes"))
            made = f"{size / 2**20:12.3f} MiB made" if size else ""
            lines.append(f"{figure:70} {user:8.3f} s user {system:8.3f} s system {mib:8.0f} MiB peak {made}")
    return lines
