"""Peak memory of conversions by the tool, for sources of several sizes, without a limit and within a memory cgroup.

Each conversion's target is the next conversion's source, so the disk holds two checkpoints at a time:
DCP -> torch.save -> DCP -> safetensors -> DCP.
"""

import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from forked_calls import ForkedCalls
from memory_cgroup import memory_limit
from page_cache import bytes_on_disk
from spread_table import Samples, head, row, spread
from tool_run import run_tool

import cairn

CHAIN = ("dcp", "torch", "dcp", "safetensors", "dcp")
LIMIT_MIB = 200
TENSOR_MIB = 256
FREE_BYTES_MIN = 6 << 30  # that stay free on the disk

UNLIMITED, LIMITED = "no limit", f"limit of {LIMIT_MIB} MiB"


@dataclass(frozen=True)
class Peak:
    direction: str
    limit: str  # UNLIMITED or LIMITED
    mib: float  # resident memory of the whole process
    seconds: float


def write_source(directory: str, gibibytes: int) -> None:
    """Writes a DCP checkpoint of real bytes. Each tensor repeats a row of 1 MiB: the state takes little memory."""
    rows = [torch.empty(1 << 18).uniform_(-1, 1) for _ in range(4)]
    count = gibibytes * 1024 // TENSOR_MIB
    state = {f"layers.{number}.weight": rows[number % 4].expand(TENSOR_MIB, -1) for number in range(count)}
    cairn.save(state, checkpoint_id=directory, no_dist=True)


def has_room(scratch: Path, gibibytes: int) -> bool:
    return shutil.disk_usage(scratch).free >= 2 * (gibibytes << 30) + FREE_BYTES_MIN


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def measure_peaks(scratch: Path, gibibytes: int) -> Iterator[Peak]:
    """Yields the peak of each conversion of the chain, twice. Removes all files, also after a failure."""
    folder = scratch / f"{gibibytes}-gib"
    folder.mkdir()
    try:
        with ForkedCalls([Path(__file__).stem]) as calls:
            source = folder / "0.dcp"
            calls.call(Path(__file__).stem, "write_source", source, gibibytes)
        for number, (before, after) in enumerate(itertools.pairwise(CHAIN), start=1):
            for limit in (UNLIMITED, LIMITED):
                target = folder / f"{number}.{after}"
                if target.exists():
                    remove(target)
                yield measure_peak(source, target, f"{before} to {after}", limit)
            remove(source)
            source = target
    finally:
        shutil.rmtree(folder)


def measure_peak(source: Path, target: Path, direction: str, limit: str) -> Peak:
    words = ["convert", source, target, "--to", direction.partition(" to ")[2]]
    if limit == UNLIMITED:
        run = run_tool(words)
        means = limit
    else:
        with memory_limit(LIMIT_MIB) as group:
            run = run_tool(words, group.words)
            used = group.peak_mib()
            means = f"{group.name} of {LIMIT_MIB} MiB" + (f", {used:.0f} MiB with page cache" if used else "")
    if run.exit_status != 0:
        raise RuntimeError(f"cairn convert ended with {run.exit_status}: {direction}, {means}")
    gib = bytes_on_disk(target) / 2**30
    text = f"  {direction}, {gib:.1f} GiB, {means}: peak {run.peak_mib:.1f} MiB, {run.seconds:.1f} s"
    print(text, file=sys.stderr, flush=True)
    return Peak(direction, limit, run.peak_mib, run.seconds)


def figure(direction: str, limit: str, quantity: str) -> str:
    return f"convert memory: {direction}, {limit}, {quantity}"


def measure_convert_memory(scratch: Path, sizes: list[int]) -> Iterator[tuple[str, str, float]]:
    """Yields figure, size and value. Leaves out a size for which the disk has no room, and says so."""
    for gibibytes in sizes:
        if not has_room(scratch, gibibytes):
            free = shutil.disk_usage(scratch).free / 2**30
            text = f"  {gibibytes} GiB left out: {2 * gibibytes} GiB are written, and {free:.0f} GiB are free"
            print(text, file=sys.stderr, flush=True)
            continue
        os.sync()
        for peak in measure_peaks(scratch, gibibytes):
            yield figure(peak.direction, peak.limit, "MiB"), f"{gibibytes} GiB", peak.mib
            yield figure(peak.direction, peak.limit, "s"), f"{gibibytes} GiB", peak.seconds


def memory_lines(samples: Samples) -> list[str]:
    """Returns the rows of the table: sizes are columns."""
    directions = [f"{before} to {after}" for before, after in itertools.pairwise(CHAIN)]
    first = next((per_size for name, per_size in samples.items() if name.startswith("convert memory: ")), None)
    if first is None:
        return []
    sizes = list(first)
    lines = [head("peak of cairn convert, MiB", sizes)]
    for limit in (UNLIMITED, LIMITED):
        for direction in dict.fromkeys(directions):
            peaks = samples.get(figure(direction, limit, "MiB"), {})
            cells = [spread(peaks.get(size, []), "{:.1f}") for size in sizes]
            lines.append(row(f"{direction}, {limit}", cells))
    return lines
