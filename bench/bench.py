"""Measures Cairn beside torch.distributed.checkpoint, torch.save, safetensors and the raw device, in one run.

Peers take turns (A B C A B C ...), all sync file and directory, and the table shows medians. Shares are relative to the
raw device's best rate in the run.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from alarm_bench import measure_alarm
from async_bench import measure_async
from async_peers import ASYNC_PEERS
from convert_bench import ConvertBench, convert_lines
from convert_memory import measure_convert_memory, memory_lines
from events_bench import events_lines, measure_events
from metadata_bench import measure_metadata
from page_cache import empty_directory, forget, remember
from peak_memory import PeakMemory
from peers import PEERS, Peer
from planning_bench import LOCAL_TENSORS, RANK_COUNTS, measure_local_plan, measure_planning
from ranks_bench import measure_ranks
from safetensors_bench import SafetensorsBench, safetensors_lines
from scale_bench import measure_scale, scale_lines
from speed_chart import plot
from states import bytes_of, small_tensors, transformer_with_adam
from stopwatch import seconds_of

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/release"
FIGURES = ("large", "small", "memory", "metadata", "local_plan", "planning", "ranks", "async", "alarm")
FIGURES += ("convert", "safetensors")
# Measured only by name: convert_memory needs room on the disk for two checkpoints of the largest size, scale 6 GiB of
# memory for 16,384 ranks, events the program valgrind.
LONG_FIGURES = ("convert_memory", "scale", "events")


@dataclass
class Samples:
    """Samples: figure, then peer, then a number per round."""

    by_figure: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def add(self, figure: str, peer: str, value: float) -> None:
        self.by_figure[figure][peer].append(value)

    def add_all(self, found: dict[str, dict[str, float]]) -> None:
        for figure, per_peer in found.items():
            for peer, value in per_peer.items():
                self.add(figure, peer, value)

    def median(self, figure: str, peer: str) -> float | None:
        values = self.by_figure.get(figure, {}).get(peer)
        return statistics.median(values) if values else None


class Bench:
    def __init__(self, arguments: argparse.Namespace, scratch: Path) -> None:
        self.arguments = arguments
        self.scratch = scratch
        self.peers = [PEERS[name] for name in arguments.peers]
        self.samples = Samples()

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def rounds(self, what: str) -> Iterator[list[Peer]]:
        """Gives the peers of each round. Each round begins with another peer: the first peer measured after the raw
        device, or after a slow peer, finds a busier device."""
        for number in range(self.arguments.rounds):
            self.say(f"{what}: round {number + 1} of {self.arguments.rounds}")
            first = number % len(self.peers)
            yield self.peers[first:] + self.peers[:first]

    # --- figures

    def measure_large(self) -> None:
        state = transformer_with_adam(self.arguments.state_mib)
        size = bytes_of(state)
        raw_device = build_program("raw_device")
        self.warm_up()
        for peers in self.rounds(f"state of {size / 2**20:.0f} MiB"):
            self.measure_raw_device(raw_device, size)
            for peer in peers:
                with empty_directory(self.scratch / peer.name) as directory:
                    wall, cpu = seconds_of(lambda peer=peer, directory=directory: peer.save(state, directory))
                self.samples.add("save rate", peer.name, size / wall)
                self.samples.add("save cpu", peer.name, cpu / (size / 1e9))
            self.measure_raw_device(raw_device, size)  # again: foreign load may slow the device for a while
            for temperature, prepare in (("cold", forget), ("warm", remember)):
                for peer in peers:
                    directory = self.scratch / peer.name
                    prepare(directory)
                    wall, cpu = seconds_of(lambda peer=peer, directory=directory: peer.load(state, directory))
                    self.samples.add(f"{temperature} load rate", peer.name, size / wall)
                    self.samples.add(f"{temperature} load cpu", peer.name, cpu / (size / 1e9))

    def measure_raw_device(self, program: Path, size: int) -> None:
        directory = self.scratch / "raw"
        directory.mkdir(exist_ok=True)
        for figure, rate in json.loads(output_of(str(program), str(directory), str(size))).items():
            self.samples.add("raw " + figure, "device", rate)

    def measure_small(self) -> None:
        count = self.arguments.small_count
        state = small_tensors(count)
        self.warm_up()
        for peers in self.rounds(f"{count} small tensors"):
            for peer in peers:
                with empty_directory(self.scratch / peer.name) as directory:
                    wall, _ = seconds_of(lambda peer=peer, directory=directory: peer.save(state, directory))
                self.samples.add("small save", peer.name, wall / count * 1e6)
            for peer in peers:
                wall, _ = seconds_of(lambda peer=peer: peer.load(state, self.scratch / peer.name))
                self.samples.add("small load", peer.name, wall / count * 1e6)

    def measure_memory(self) -> None:
        size = ["--state-mib", str(self.arguments.state_mib)]
        for peer in self.peers:
            with empty_directory(self.scratch / "memory" / "large") as directory:
                for action in ("save", "load"):
                    self.say(f"memory: {action} of {peer.name}")
                    words = ["--measure-peak", peer.name, action, str(directory)]
                    peak = output_of(sys.executable, __file__, *words, *size)
                    self.samples.add(f"peak {action}", peer.name, float(peak))

    def measure_metadata(self) -> None:
        program = build_program("metadata")
        for _ in self.rounds("metadata of 460,800 chunks"):
            self.samples.add_all(measure_metadata(program, self.scratch))

    def measure_local_plan(self) -> None:
        program = build_program("local_plan")
        for _ in self.rounds(f"local plan of {LOCAL_TENSORS} tensors"):
            self.samples.add_all(measure_local_plan(program))

    def measure_planning(self) -> None:
        program = build_program("planning")
        for _ in self.rounds("plans of many ranks"):
            self.samples.add_all(measure_planning(program))

    def measure_ranks(self) -> None:
        for _ in self.rounds("2 ranks, 4 to 2, and replicas"):
            for figure, per_library in measure_ranks(self.scratch, self.arguments.state_mib).items():
                for library, value in per_library.items():
                    self.samples.add(f"ranks: {figure}", library, value)

    def measure_async(self) -> None:
        raw_device = build_program("raw_device")
        size = bytes_of(transformer_with_adam(self.arguments.state_mib))
        self.samples.add("async state", "trainer", size / 2**20)
        for number, _ in enumerate(self.rounds("asynchronous saves")):
            found = measure_async(self.scratch / "async", raw_device, number, self.arguments)
            for figure, per_peer in found.items():
                for peer, values in per_peer.items():
                    for value in values:
                        self.samples.add(figure, peer, value)

    def measure_alarm(self) -> None:
        for _ in self.rounds("the torn-snapshot alarm"):
            for state, per_kind in measure_alarm(self.scratch / "alarm").items():
                for kind, quotient in per_kind.items():
                    self.samples.add(f"alarm: {state}", kind, quotient)

    def measure_convert(self) -> None:
        with ConvertBench(self.scratch / "convert", round(self.arguments.size * 1024)) as bench:
            for _ in self.rounds(f"conversions of {self.arguments.size:g} GiB"):
                self.samples.add_all(bench.one_round())

    def measure_safetensors(self) -> None:
        with SafetensorsBench(self.scratch / "safetensors", self.arguments.state_mib) as bench:
            for _ in self.rounds(f"safetensors models of {self.arguments.state_mib} MiB"):
                self.samples.add_all(bench.one_round())

    def measure_convert_memory(self) -> None:
        for _ in self.rounds("memory of conversions"):
            for figure, size, value in measure_convert_memory(self.scratch, self.arguments.memory_gib):
                self.samples.add(figure, size, value)

    def measure_events(self) -> None:
        program = build_program("events")
        for _ in self.rounds("events"):
            for figure, listener, value in measure_events(program, self.scratch / "events"):
                self.samples.add(figure, listener, value)

    def measure_scale(self) -> None:
        program = build_program("scale")
        for _ in self.rounds("the steps of a save by many ranks"):
            for figure, column, value in measure_scale(program, self.arguments.ranks, self.arguments.shape):
                self.samples.add(figure, column, value)

    def warm_up(self) -> None:
        """Makes the first calls unmeasured: imports and thread pools are not part of a figure."""
        state = transformer_with_adam(0)
        for peer in self.peers:
            with empty_directory(self.scratch / "warm-up") as directory:
                peer.save(state, directory)
                peer.load(state, directory)


# --- peak memory, in its own process


def measure_peak(peer: Peer, action: str, directory: Path, state_mib: int) -> float:
    """Returns the peak of resident memory added by a call, in MiB. Pages of mapped files count while mapped."""
    small = transformer_with_adam(0)
    with empty_directory(directory.with_name("small")) as other:
        peer.save(small, other)
        peer.load(small, other)
    del small
    state = transformer_with_adam(state_mib)
    gc.collect()
    peak = PeakMemory()
    result = peer.save(state, directory) if action == "save" else peer.load(state, directory)
    mib = peak.mib()
    del result
    return mib


# --- programs


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def build_program(name: str) -> Path:
    """Builds a C++ program of this folder, beside the release build."""
    for command in (
        ("cmake", "--preset", "release", "-DCAIRN_BUILD_BENCH=ON"),
        ("cmake", "--build", "--preset", "release", "--target", f"bench_{name}"),
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return BUILD / "bin" / f"bench_{name}"


# --- the table


class Table:
    """Rows of figures, columns of peers."""

    def __init__(self, samples: Samples, peers: list[str]) -> None:
        self.samples = samples
        self.peers = peers
        self.lines: list[str] = []

    def row(self, title: str, figure: str, form: str, scale: float = 1.0, target: str = "") -> None:
        cells = []
        for peer in self.peers:
            value = self.samples.median(figure, peer)
            if value is None:
                cells.append("fails" if self.samples.median(f"{figure}, failed", peer) else "")
            else:
                cells.append(form.format(value * scale))
        if any(cells):
            if not self.lines:
                self.lines.append(f"{'':34}" + "".join(f"{peer:>17}" for peer in self.peers))
            self.lines.append(f"{title:34}" + "".join(f"{cell:>17}" for cell in cells) + (target and f"   {target}"))

    def ranks_rows(self) -> None:
        for figure in self.samples.by_figure:
            ours, stock = (self.samples.median(figure, library) for library in ("cairn", "dcp"))
            if figure.startswith("ranks: ") and ours is not None and stock is not None:
                unit = " s" if figure.endswith(("save", "load")) else ""
                title = figure.removeprefix("ranks: ")
                self.lines.append(f"{title:48} {ours:.3f}{unit}, dcp {stock:.3f}{unit}")

    def local_plan_row(self) -> None:
        ours, stock = (self.samples.median("local plan", peer) for peer in ("cairn", "torch"))
        native = self.samples.median("local plan, its bytes", "cairn")
        if ours and stock and native:
            each, of_bytes, theirs = (seconds / LOCAL_TENSORS * 1e6 for seconds in (ours, native, stock))
            text = f"{each:.2f} us each ({of_bytes:.2f} its bytes), torch {theirs:.1f} us: 1/{stock / ours:.1f}"
            self.lines.append(f"{f'local plan of {LOCAL_TENSORS:,} tensors':34}    {text}")

    def async_rows(self) -> None:
        """Adds the rows with their targets.

        A target relative to another library uses the library's figure of this run.
        """

        def target(part: float, figure: str, peer: str) -> str:
            value = self.samples.median(figure, peer)
            return f"<= {value * part:.2f}" if value is not None else ""

        self.row("trainer blocked, in copies", "async blocked", "{:.2f}", target="<= 1.1")
        self.row("  first save, prepared", "async first blocked", "{:.2f}", target="<= 1.3")
        self.row("  staged later, with the fence", "async blocked, staged later", "{:.2f}", target="<= 0.3")
        self.row("training meanwhile, large", "async training, large", "{:.2f}", target=">= 0.95")
        self.row("training meanwhile, small", "async training, small", "{:.2f}", target=">= 0.95")
        floors = [self.samples.median("async lost, floor", peer) or 0 for peer in self.peers]
        least = max(1.2, 1.15 * statistics.median(floors))
        self.row("lost in all, large, in copies", "async lost, large", "{:.2f}", target=f"<= {least:.2f}")
        self.row("  floor of copy, CRC and write", "async lost, floor", "{:.2f}")
        self.row("lost in all, small, ms", "async lost, small", "{:.1f}", target="<= 20")
        first = target(1 / 5, "async first durable", "dcp process")
        self.row("first 100 MB durable, s", "async first durable", "{:.2f}", target=first)
        self.row("durable, share of raw write", "async durable share", "{:.2f}", target=">= 0.80")
        self.row("  in GB/s", "async durable rate", "{:.2f}", 1e-9)
        self.row("  the raw device beside it, GB/s", "async raw rate", "{:.2f}", 1e-9)
        self.row(
            "CPU s per GB, with the writer", "async cpu", "{:.2f}", target=target(1 / 3, "async cpu", "dcp thread")
        )
        self.row("small tensors, blocked, us each", "async small blocked", "{:.1f}", target="<= 2.7")
        self.row("100,000, 256 descriptors, us each", "async many", "{:.1f}", target="works")
        state = self.samples.median("async state", "trainer") or 0
        self.row("memory beyond the state, MiB", "async memory", "{:.0f}", target=f"<= {state + 64:.0f}")
        self.row("  while two saves overlap", "async memory, two saves", "{:.0f}", target=f"<= {2 * state + 64:.0f}")

    def alarm_rows(self) -> None:
        for figure in self.samples.by_figure:
            if figure.startswith("alarm: "):
                thread, process = (self.samples.median(figure, kind) for kind in ("thread", "process"))
                title = f"torn-snapshot alarm, {figure.removeprefix('alarm: ')}"
                self.lines.append(
                    f"{title:48} call with / without: thread {thread:.3f}, process {process:.3f}   <= 1.02"
                )

    def planning_row(self, ranks: int) -> None:
        seconds, mib = (
            self.samples.by_figure.get(f"{figure} {ranks}", {}) for figure in ("planning", "planning memory")
        )
        if not seconds or not mib:
            return
        cells = [
            f"{statistics.median(seconds[peer]) * 1e3:.1f} ms, {statistics.median(mib[peer]):.0f} MiB"
            for peer in ("cairn", "torch")
        ]
        share = statistics.median(seconds["torch"]) / statistics.median(seconds["cairn"])
        title = f"plan of a save by {ranks} ranks"
        self.lines.append(f"{title:34}    {cells[0]}, torch {cells[1]}: 1/{share:.0f}")

    def raw_rate(self, direction: str) -> float | None:
        """Returns the better rate of direct and buffered I/O, by its median."""
        rates = [self.samples.median(f"raw {direction}_{way}", "device") for way in ("direct", "buffered")]
        return max((rate for rate in rates if rate is not None), default=None)

    def text(self) -> str:
        raw_write, raw_read = self.raw_rate("write"), self.raw_rate("read")
        if raw_write and raw_read:
            self.row("save, share of raw write", "save rate", "{:.2f}", 1 / raw_write)
            self.row("cold load, share of raw read", "cold load rate", "{:.2f}", 1 / raw_read)
        self.row("save, GB/s", "save rate", "{:.2f}", 1e-9)
        self.row("cold load, GB/s", "cold load rate", "{:.2f}", 1e-9)
        self.row("warm load, GB/s", "warm load rate", "{:.2f}", 1e-9)
        self.row("save, CPU s per GB", "save cpu", "{:.2f}")
        self.row("cold load, CPU s per GB", "cold load cpu", "{:.2f}")
        self.row("warm load, CPU s per GB", "warm load cpu", "{:.2f}")
        self.row("small tensors, save, us each", "small save", "{:.1f}")
        self.row("small tensors, load, us each", "small load", "{:.1f}")
        self.row("peak memory of a save, MiB", "peak save", "{:.0f}")
        self.row("peak memory of a load, MiB", "peak load", "{:.0f}")
        for action in ("read", "write"):
            ours, pickles = (self.samples.median(f"metadata {action}", peer) for peer in ("cairn", "pickle"))
            if ours and pickles:
                text = f"{ours:.3f} s, pickle {pickles:.2f} s: 1/{pickles / ours:.0f}"
                self.lines.append(f"{'.metadata of 460,800 chunks, ' + action:34}    {text}")
        self.local_plan_row()
        for ranks in RANK_COUNTS:
            self.planning_row(ranks)
        self.ranks_rows()
        self.alarm_rows()
        asynchronous = Table(self.samples, list(ASYNC_PEERS))
        asynchronous.async_rows()
        self.lines += asynchronous.lines
        for lines in (convert_lines, memory_lines, safetensors_lines, scale_lines, events_lines):
            self.lines += lines(self.samples.by_figure)
        if raw_write and raw_read:
            self.lines.append(f"raw device: write {raw_write / 1e9:.2f} GB/s, read {raw_read / 1e9:.2f} GB/s")
            for figure, peers in self.samples.by_figure.items():
                if figure.startswith("raw "):
                    rates = ", ".join(f"{rate / 1e9:.2f}" for rate in peers["device"])
                    self.lines.append(f"  {figure.removeprefix('raw ').replace('_', ' '):16} {rates} GB/s")
        return "\n".join(self.lines)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    figures = f"of {', '.join(FIGURES)} (default: all), {', '.join(LONG_FIGURES)}"
    parser.add_argument("figures", nargs="*", help=figures)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--state-mib", type=int, default=1024, help="size of the large state (default: 1024)")
    parser.add_argument("--small-count", type=int, default=10_000, help="number of small tensors (default: 10,000)")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), metavar="PEER", help=", ".join(PEERS))
    parser.add_argument("--size", type=float, default=2, metavar="GIB", help="of the converted checkpoint (default: 2)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1024, 4096, 16384], help="numbers of ranks for scale")
    parser.add_argument(
        "--shape", choices=("shared", "own", "common"), default="shared", help="tensors of all ranks, for scale"
    )
    parser.add_argument("--memory-gib", type=int, nargs="+", default=[2, 20], help="sizes for convert_memory")
    names = {"choices": ASYNC_PEERS, "default": list(ASYNC_PEERS), "metavar": "PEER", "help": ", ".join(ASYNC_PEERS)}
    parser.add_argument("--async-peers", nargs="+", **names)
    parser.add_argument("--scratch", type=Path, help="a directory on the device to measure (default: under build/)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every sample, for programs")
    parser.add_argument("--plot", action="store_true", help="draw docs/speed.svg of large and small, and of async")
    parser.add_argument("--measure-peak", nargs=3, metavar=("PEER", "ACTION", "DIR"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    for figure in arguments.figures:
        if figure not in FIGURES + LONG_FIGURES:
            parser.error(f"no figure '{figure}'")
    return arguments


def main() -> int:
    arguments = parse()
    if arguments.measure_peak:
        name, action, directory = arguments.measure_peak
        print(measure_peak(PEERS[name], action, Path(directory), arguments.state_mib))
        return 0
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.scratch or ROOT / "build") as scratch:
        bench = Bench(arguments, Path(scratch))
        for figure in arguments.figures or FIGURES:
            getattr(bench, f"measure_{figure}")()
    if arguments.json:
        arguments.json.write_text(json.dumps(bench.samples.by_figure, indent=1) + "\n")
    if arguments.plot:
        plot(bench.samples.by_figure)
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, {arguments.rounds} rounds, medians")
    print(Table(bench.samples, arguments.peers).text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
