"""Conversions among DCP, torch.save and safetensors: Cairn beside torch's functions and a copy of the source.

Each conversion runs in a process of its own (forked_calls.py), after a conversion of a small checkpoint; the tool
`cairn` is a process of its own anyway. All conversions of a setting are durable, or none is.
"""

import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from conversions import CONVERSIONS
from forked_calls import CallFailed, ForkedCalls
from page_cache import bytes_on_disk, empty_directory, forget, remember
from peak_memory import PeakMemory
from spread_table import Samples, head, row, seconds_and_multiples, spread
from states import State, bytes_of, small_tensors, transformer_with_adam
from stopwatch import seconds_of
from tool_run import run_tool

import cairn

# By name: whether the source is in the page cache, and whether the target is synced.
SETTINGS = {"cold page cache, durable": (False, True), "warm page cache, not durable": (True, False)}
PEERS = ("cairn", "cairn tool", "torch", "copy")

Found = dict[str, dict[str, float]]  # by figure and peer


def figure(direction: str, setting: str, quantity: str) -> str:
    return f"convert: {direction}, {setting}, {quantity}"


# --- in the process of a call


def nested_tensors(mebibytes: int) -> State:
    """Returns weights and Adam moments, without the values that safetensors lacks; a few small tensors for size 0."""
    if mebibytes == 0:
        return {"model": small_tensors(8)}
    state = transformer_with_adam(mebibytes)
    return {"model": state["model"], "optimizer": {"state": state["optimizer"]["state"]}}


def write_sources(directory: str, mebibytes: int) -> int:
    """Writes one state in all formats: DCP and safetensors by Cairn, with checksums; torch.save by torch.

    Returns the bytes of the tensors.
    """
    state = nested_tensors(mebibytes)
    folder = Path(directory)
    folder.mkdir(parents=True)
    cairn.save(state, checkpoint_id=folder / "dcp", no_dist=True)
    torch.save(state, folder / "torch")
    cairn.convert(folder / "dcp", folder / "safetensors.safetensors", to="safetensors")
    return bytes_of(state)


def source_of(folder: Path, direction: str) -> Path:
    name = direction.partition(" to ")[0]
    return folder / ("safetensors.safetensors" if name == "safetensors" else name)


def target_of(folder: Path, direction: str) -> Path:
    name = direction.partition(" to ")[2]
    return folder / ("safetensors.safetensors" if name == "safetensors" else name)


def measure(direction: str, peer: str, setting: str, sources: str, targets: str) -> dict[str, float]:
    """Converts the large source in `sources`, after the small one. Returns the figures of the large conversion."""
    is_cached, durable = SETTINGS[setting]
    convert = CONVERSIONS[direction][peer]
    with empty_directory(Path(targets) / "small") as small:
        convert(source_of(Path(sources) / "small", direction), target_of(small, direction), durable)
    source = source_of(Path(sources) / "large", direction)
    with empty_directory(Path(targets) / "large") as large:
        (remember if is_cached else forget)(source)
        peak = PeakMemory()
        wall, cpu = seconds_of(lambda: convert(source, target_of(large, direction), durable))
        found = {"seconds": wall, "cpu": cpu, "peak_mib": peak.mib()}
        check_bytes(source, large)
        return found


def measure_tool(direction: str, setting: str, sources: str, targets: str) -> dict[str, float]:
    """As measure(), by ``cairn convert``. `peak_mib` is of the whole process."""
    is_cached, _ = SETTINGS[setting]
    source = source_of(Path(sources) / "large", direction)
    with empty_directory(Path(targets) / "large") as large:
        (remember if is_cached else forget)(source)
        run = run_tool(["convert", source, target_of(large, direction), "--to", direction.partition(" to ")[2]])
        if run.exit_status != 0:
            raise RuntimeError(f"cairn convert ended with {run.exit_status}")
        check_bytes(source, large)
        return asdict(run)


def check_bytes(source: Path, target: Path) -> None:
    """Raises if a target has clearly fewer bytes than the source: a conversion may fail silently."""
    if bytes_on_disk(target) < 0.99 * bytes_on_disk(source):
        raise RuntimeError(f"{bytes_on_disk(target)} bytes were written of {bytes_on_disk(source)}")


# --- from the outside


class ConvertBench:
    """The sources of the conversions, and the process that forks. A context manager."""

    def __init__(self, scratch: Path, mebibytes: int) -> None:
        self.calls = ForkedCalls([Path(__file__).stem])
        self.sources = scratch / "sources"
        self.targets = scratch / "targets"
        self.failed: set[tuple[str, str]] = set()
        for name, size in (("small", 0), ("large", mebibytes)):
            self.calls.call(Path(__file__).stem, "write_sources", self.sources / name, size)

    def __enter__(self) -> "ConvertBench":
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.process.communicate()
        shutil.rmtree(self.sources)

    def one_round(self) -> Found:
        """Measures each conversion once, the libraries in turn. Returns the figures by peer."""
        found: Found = {}
        for setting, (_, durable) in SETTINGS.items():
            for direction in CONVERSIONS:
                for peer in PEERS:
                    if peer == "cairn tool" and not durable:
                        continue  # the tool always syncs
                    for quantity, value in self.measured(direction, peer, setting).items():
                        found.setdefault(figure(direction, setting, quantity), {})[peer] = value
        return found

    def measured(self, direction: str, peer: str, setting: str) -> dict[str, float]:
        """Returns the figures; none, after a line about the reason, if the conversion fails."""
        if (direction, peer) in self.failed:
            return {}
        places: list[Any] = [setting, self.sources, self.targets]
        try:
            if peer == "cairn tool":
                found = self.calls.call(Path(__file__).stem, "measure_tool", direction, *places)
            else:
                found = self.calls.call(Path(__file__).stem, "measure", direction, peer, *places)
        except CallFailed as error:
            print(f"  {direction} by {peer} failed: {error}", file=sys.stderr, flush=True)
            self.failed.add((direction, peer))
            return {}
        finally:
            shutil.rmtree(self.targets, ignore_errors=True)
        return {quantity: found[quantity] for quantity in ("seconds", "cpu", "peak_mib")}


def convert_lines(samples: Samples) -> list[str]:
    """Returns the rows of the table."""
    lines: list[str] = []
    for setting in SETTINGS:
        titles = {figure(direction, setting, "seconds"): direction for direction in CONVERSIONS}
        if not any(title in samples for title in titles):
            continue
        lines.append(head(f"convert, {setting}", PEERS))
        for title, direction in titles.items():
            lines += seconds_and_multiples(samples, {title: direction}, PEERS, "copy")
            for quantity, text, form in (("cpu", "  CPU s", "{:.2f}"), ("peak_mib", "  peak memory, MiB", "{:.1f}")):
                per_peer = samples.get(figure(direction, setting, quantity), {})
                lines.append(row(text, [spread(per_peer.get(peer, []), form) for peer in PEERS]))
    return lines
