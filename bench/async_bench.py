"""Asynchronous saves: the trainer's wait, the training's slowdown during the write, and the time until durability.

Every measurement runs in its own process; the libraries take turns. Run as a program, the module measures a single
round; imported, the module starts the program and returns its figures. docs/performance.md defines each figure.
"""

import argparse
import contextlib
import gc
import json
import multiprocessing
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from async_peers import ASYNC_PEERS, AsyncPeer, Pending
from peak_memory import PeakTogether, mib_together, processes_under
from states import State, bytes_of, small_tensors, tensors_of, transformer_with_adam
from training_rate import TrainingLoop, on_one_core

FIRST_MB = 100
MANY_TENSORS = 100_000
DESCRIPTORS = 256
SECONDS_MAX = 180  # for one measurement; a library that hangs is left out
SECONDS_TO_END = 20  # for a process that has reported its figures
DURABLE_SAVES = 3
SETTLE_SECONDS = 0.2  # of training before the measured steps
DRAIN_SECONDS = 2.0  # the least total time of training measured during drains
DRAINS_MIN, DRAINS_MAX = 3, 40
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

Figures = dict[str, list[float]]


# --- one measurement, in its own process


@dataclass
class Trial:
    """A library in this process, and a place for its checkpoints."""

    peer: AsyncPeer
    scratch: Path
    raw_device: Path  # the program
    figures: Figures = field(default_factory=lambda: defaultdict(list))

    def add(self, figure: str, value: float) -> None:
        self.figures[figure].append(value)

    def blocked(self, state: State, directory: Path) -> tuple[float, Pending]:
        """Returns the seconds that the trainer waits for a save, and the save."""
        with no_garbage():
            start = time.perf_counter()
            pending = self.peer.save(state, directory)
            return time.perf_counter() - start, pending

    @contextlib.contextmanager
    def directory(self, state: State, name: str = "checkpoint") -> Iterator[Path]:
        """Yields an empty directory for a checkpoint of `state`, after a sync of the device.

        At the end the checkpoint must be there, and the directory is removed.
        """
        path = self.scratch / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        os.sync()
        yield path
        saved = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        if saved < bytes_of(state):
            raise RuntimeError(f"{saved} bytes were saved of {bytes_of(state)}")
        shutil.rmtree(path)

    def raw_rate(self, size: int) -> float:
        """Returns the device's write rate now, in bytes per second, measured by a program that only writes."""
        return self.raw_device_figures(size, "write_direct")["write_direct"]

    def raw_cpu_seconds(self, size: int) -> float:
        """Returns the CPU seconds of a bare write of `size` bytes and of their checksums."""
        figures = self.raw_device_figures(size, "floor")
        return figures["write_cpu"] + figures["checksum_cpu"]

    def raw_device_figures(self, size: int, what: str) -> dict[str, float]:
        path = self.scratch / "raw"
        path.mkdir(parents=True, exist_ok=True)
        os.sync()
        words = [str(self.raw_device), str(path), str(size), what]
        figures: dict[str, float] = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
        return figures


@contextlib.contextmanager
def no_garbage() -> Iterator[None]:
    """Python collects garbage before the block and not inside: a collection takes as long as a save."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Copy:
    """The least wait of a trainer: one thread copies the state into memory that was used before."""

    def __init__(self, state: State) -> None:
        self.sources = list(tensors_of(state).values())
        self.targets = [tensor.clone() for tensor in self.sources]

    def seconds(self) -> float:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            self.once()
            times.append(time.perf_counter() - start)
        torch.set_num_threads(threads)
        return statistics.median(times)

    def once(self) -> None:
        for target, source in zip(self.targets, self.sources, strict=True):
            target.copy_(source)


def cpu_seconds() -> float:
    """CPU seconds of this process and its descendants. Write-back by the kernel's own threads is not included."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    total = usage.ru_utime + usage.ru_stime
    for pid in processes_under(os.getpid()) - {os.getpid()}:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
    return total


def measure_large(trial: Trial, arguments: argparse.Namespace) -> None:
    """Measures the first save, prepared ahead, and then the later saves."""
    state = transformer_with_adam(arguments.state_mib)
    copy = Copy(state)
    trial.peer.prepare(state)
    with trial.directory(state) as directory:
        one_copy = copy.seconds()
        blocked, pending = trial.blocked(state, directory)
        pending.wait()
    trial.add("async first blocked", blocked / one_copy)
    measure_durable(trial, state, copy)
    one_copy = copy.seconds()
    saves = measure_training(trial, state, copy, "async training, large")
    for blocked in saves.blocked:
        trial.add("async blocked", blocked / one_copy)
    trial.add("async lost, large", saves.lost / one_copy)
    floor = (one_copy + trial.raw_cpu_seconds(bytes_of(state))) / (os.cpu_count() or 1)
    trial.add("async lost, floor", floor / one_copy)
    if trial.peer.can_stage_later:
        with trial.directory(state) as directory:
            one_copy = copy.seconds()
            lost = lost_when_staged_later(trial, state, directory, step_seconds=max(0.1, 3 * one_copy))
        trial.add("async blocked, staged later", lost / one_copy)


def measure_durable(trial: Trial, state: State, copy: Copy) -> None:
    """Measures whole saves.

    The rate of the raw device, which changes from second to second, is measured before and after.
    """
    size = bytes_of(state)
    raw_before = trial.raw_rate(size)
    for _ in range(DURABLE_SAVES):
        with trial.directory(state) as directory:
            one_copy = copy.seconds()
            with no_garbage():
                cpu, start = cpu_seconds(), time.perf_counter()
                pending = trial.peer.save(state, directory)
                blocked = time.perf_counter() - start
                pending.wait()
                wall, cpu = time.perf_counter() - start, cpu_seconds() - cpu
        raw_after = trial.raw_rate(size)
        trial.add("async blocked", blocked / one_copy)
        trial.add("async durable share", size / wall / statistics.mean((raw_before, raw_after)))
        trial.add("async durable rate", size / wall)
        trial.add("async raw rate", raw_after)
        trial.add("async cpu", cpu / (size / 1e9))
        raw_before = raw_after


@dataclass
class MeasuredSaves:
    """`lost`: the seconds that the trainer loses for a save, on average: blocked, and slower steps during the drain."""

    blocked: list[float]  # seconds, of each save
    lost: float


def measure_training(trial: Trial, state: State, copy: Copy, figure: str) -> MeasuredSaves:
    """Measures the rate of training steps while saves drain, as a share of the rate without saves.

    A drain can end after a few steps; the measurement therefore repeats saves until the drains are long enough in
    total. Each drain is paired with a window of equal length without a save, in turn before and after the drain. Both
    begin right after a copy of the state: the first steps after a copy find none of their data in the caches.
    """
    training = TrainingLoop()
    blocked: list[float] = []
    draining, alone = Steps(), Steps()

    def drain() -> None:
        with trial.directory(state) as directory:
            with on_one_core():
                training.rate_for(SETTLE_SECONDS)
            # The call runs on all cores: processes and threads started by the call must not be confined to the
            # trainer's core.
            waited, pending = trial.blocked(state, directory)
            blocked.append(waited)
            with on_one_core():
                draining.add(*training.steps_while(lambda: not pending.done()))
            pending.wait()

    def train_alone() -> None:
        os.sync()
        with on_one_core():
            training.rate_for(SETTLE_SECONDS)
        copy.once()
        end = time.perf_counter() + draining.last_seconds
        with on_one_core():
            alone.add(*training.steps_while(lambda: time.perf_counter() < end))

    drain()
    draining, blocked = Steps(draining.last_seconds), []  # the first drain gives the length of the windows
    while len(blocked) < DRAINS_MIN or (draining.seconds < DRAIN_SECONDS and len(blocked) < DRAINS_MAX):
        for part in (drain, train_alone) if len(blocked) % 2 else (train_alone, drain):
            part()
    share = draining.rate() / alone.rate()
    trial.add(figure, share)
    return MeasuredSaves(blocked, statistics.mean(blocked) + draining.seconds * (1 - share) / len(blocked))


@dataclass
class Steps:
    """The count and the duration of the measured training steps."""

    last_seconds: float = 0.0
    count: int = 0
    seconds: float = 0.0

    def add(self, count: int, seconds: float) -> None:
        self.count += count
        self.seconds += seconds
        self.last_seconds = seconds

    def rate(self) -> float:
        return self.count / self.seconds


def lost_when_staged_later(trial: Trial, state: State, directory: Path, step_seconds: float) -> float:
    """Returns the seconds of call and fence in sum.

    The training step between call and fence is longer than the copy.
    """
    training = TrainingLoop()
    start = time.perf_counter()
    pending = trial.peer.save(state, directory, stage_later=True)
    lost = time.perf_counter() - start
    with on_one_core():
        end = time.perf_counter() + step_seconds
        while time.perf_counter() < end:
            training.accumulate()
    start = time.perf_counter()
    pending.fence()
    lost += time.perf_counter() - start
    pending.wait()
    return lost


def measure_small(trial: Trial, arguments: argparse.Namespace) -> None:
    """Measures very many small tensors: the figure is the time per tensor."""
    count = arguments.small_count
    state = {"model": small_tensors(count)}
    trial.peer.prepare(state)
    with trial.directory(state) as directory:
        trial.peer.save(state, directory).wait()
    saves = measure_training(trial, state, Copy(state), "async training, small")
    for blocked in saves.blocked:
        trial.add("async small blocked", blocked / count * 1e6)
    trial.add("async lost, small", saves.lost * 1e3)


def measure_first(trial: Trial, _: argparse.Namespace) -> None:
    """Measures the first save of a process without preparation."""
    state = {"model": {f"layers.{index}": torch.rand(1_000_000) for index in range(FIRST_MB // 4)}}
    with trial.directory(state) as directory:
        start = time.perf_counter()
        trial.peer.save(state, directory).wait()
        trial.add("async first durable", time.perf_counter() - start)


def measure_memory(trial: Trial, arguments: argparse.Namespace) -> None:
    """Measures the memory of trainer and writer in sum, beyond the trainer's memory before its first save."""
    state = transformer_with_adam(arguments.state_mib)
    gc.collect()
    before = mib_together({os.getpid()})
    with trial.directory(state) as directory:
        peak = PeakTogether()
        trial.peer.save(state, directory).wait()
        trial.add("async memory", peak.mib() - before)
    if trial.peer.can_overlap:
        with trial.directory(state, "one") as one, trial.directory(state, "two") as two:
            peak = PeakTogether()
            saves = [trial.peer.save(state, directory) for directory in (one, two)]
            for pending in saves:
                pending.wait()
            trial.add("async memory, two saves", peak.mib() - before)


def measure_many(trial: Trial, _: argparse.Namespace) -> None:
    """Measures more tensors than the limit of open files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    values = torch.rand(MANY_TENSORS, 64)
    state = {"model": {f"t.{index:06}": values[index].clone() for index in range(MANY_TENSORS)}}
    with trial.directory(state) as directory:
        blocked, pending = trial.blocked(state, directory)
        pending.wait()
    trial.add("async many", blocked / MANY_TENSORS * 1e6)


@dataclass(frozen=True)
class Measurement:
    run: Callable[[Trial, argparse.Namespace], None]
    must_give: tuple[str, ...]  # figures that every library gives unless the measurement failed
    start_method: str = "fork"  # torch is imported once; the parent has only imported torch
    every_round: bool = True
    without: tuple[str, ...] = ()  # libraries with the figure of a different library


MEASUREMENTS = {
    "large": Measurement(
        measure_large,
        ("async first blocked", "async blocked", "async durable share", "async cpu", "async training, large"),
    ),
    "small": Measurement(measure_small, ("async training, small", "async small blocked")),
    "first": Measurement(measure_first, ("async first durable",), without=("dcp cached",)),
    # Pages shared with a parent would count only in part: the process is spawned.
    "memory": Measurement(measure_memory, ("async memory",), start_method="spawn", every_round=False),
    "many": Measurement(measure_many, ("async many",), every_round=False, without=("dcp cached",)),
}


def run_trial(what: str, name: str, arguments: argparse.Namespace, report: Connection) -> None:
    """Runs in the process of the measurement."""
    trace = bool(os.environ.get("CAIRN_BENCH_TRACE"))
    if not trace:  # warnings and log lines of libraries and their processes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    error = None
    scratch = arguments.scratch / name.replace(" ", "-")
    figures: Figures = {}
    try:
        peer = ASYNC_PEERS[name]()
        trial = Trial(peer, scratch, arguments.raw_device, figures := defaultdict(list))
        try:
            MEASUREMENTS[what].run(trial, arguments)
        finally:
            peer.close()
    except Exception as exception:
        if trace:
            traceback.print_exc()
        error = f"{type(exception).__name__}: {exception}".splitlines()[0][:200]
    shutil.rmtree(scratch, ignore_errors=True)
    report.send((dict(figures), error))
    report.close()


def trial_in_process(what: str, name: str, arguments: argparse.Namespace) -> tuple[Figures, str | None]:
    """Returns the figures, and the error if the measurement failed."""
    context = multiprocessing.get_context(MEASUREMENTS[what].start_method)
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=run_trial, args=(what, name, arguments, sending))
    process.start()
    sending.close()
    figures: Figures = {}
    error: str | None = f"took more than {SECONDS_MAX} s"
    try:
        if receiving.poll(SECONDS_MAX):
            figures, error = receiving.recv()
    except EOFError:
        error = "the process ended"
    process.join(SECONDS_TO_END)
    if process.is_alive():
        for pid in processes_under(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.join()
    return figures, error


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--round", type=int, required=True, help="what is measured once is measured in round 0")
    parser.add_argument("--state-mib", type=int, required=True)
    parser.add_argument("--small-count", type=int, required=True)
    parser.add_argument("--peers", nargs="+", choices=ASYNC_PEERS, required=True)
    parser.add_argument("--raw-device", type=Path, required=True, help="the program bench_raw_device")
    arguments = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for what, measurement in MEASUREMENTS.items():
        if arguments.round > 0 and not measurement.every_round:
            continue
        for name in (peer for peer in arguments.peers if peer not in measurement.without):
            start = time.perf_counter()
            figures, error = trial_in_process(what, name, arguments)
            for figure, values in figures.items():
                found[figure][name] = values
            ending = f"failed: {error}" if error else f"{time.perf_counter() - start:.0f} s"
            for figure in measurement.must_give:
                if figure not in figures:
                    found[f"{figure}, failed"][name] = [1.0]
            print(f"  {what} of {name}: {ending}", file=sys.stderr, flush=True)
    print(json.dumps(found))
    return 0


# --- from the outside


def measure_async(
    scratch: Path, raw_device: Path, number: int, options: argparse.Namespace
) -> dict[str, dict[str, list[float]]]:
    """Returns the figures of round `number`, by library.

    Each figure is a list: a round may measure a figure several times.
    """
    command = [sys.executable, __file__, str(scratch), "--raw-device", str(raw_device), "--round", str(number)]
    command += ["--state-mib", str(options.state_mib), "--small-count", str(options.small_count)]
    output = subprocess.run(
        [*command, "--peers", *options.async_peers], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return dict(json.loads(output.splitlines()[-1]))


if __name__ == "__main__":
    sys.exit(main())
