"""Saves from a CUDA device and loads onto it, against torch's pinned copy: the trainer's wait, the rate of training.

The program needs torch, cairn and a CUDA device, and nothing of this folder: `./dev gpu` packs it. docs/performance.md
defines the figures. The libraries take turns; each save is durable before the next begins.
"""

import argparse
import contextlib
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse

import cairn
from cairn._async import pending_saves

GIB = 1 << 30
WINDOW_SECONDS = 1.0
KINDS = ("calls", "load", "rate", "small")
LATER = StagingOptions(
    use_pinned_memory=False, use_shared_memory=False, use_async_staging=True, use_non_blocking_copy=False
)
PINNED = StagingOptions(
    use_pinned_memory=True, use_shared_memory=False, use_async_staging=True, use_non_blocking_copy=True
)
State = dict[str, torch.Tensor]
Save = Callable[[State, Path], Any]


def seconds_of(work: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def pinned_bandwidth() -> float:
    """Bytes per second of torch's own copy into pinned memory: the median of five copies of a GiB."""
    source = torch.randn(GIB // 4, device="cuda")
    target = torch.empty(GIB // 4, pin_memory=True)

    def copy() -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    copy()
    return GIB / statistics.median(seconds_of(copy) for _ in range(5))


class Trainer:
    """A model on the device, trained in small steps (mostly Python and launches) or in large ones (mostly device)."""

    def __init__(self, width: int, layers: int, batch: int) -> None:
        self.model = torch.nn.Sequential(*(torch.nn.Linear(width, width, device="cuda") for _ in range(layers)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        self.batch = torch.randn(batch, width, device="cuda")

    def step(self) -> None:
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def rate_while(self, going: Callable[[], bool], seconds_max: float = 6.0) -> float:
        """Steps per second while `going()`, at most for `seconds_max`. The device is asked every 20 steps."""
        torch.cuda.synchronize()
        count, begin = 0, time.perf_counter()
        while going() and time.perf_counter() - begin < seconds_max:
            for _ in range(20):
                self.step()
            torch.cuda.synchronize()
            count += 20
        return count / (time.perf_counter() - begin) if count else float("nan")


TRAINERS = {"small steps": (256, 8, 32), "large steps": (4096, 8, 4096)}


@contextlib.contextmanager
def directory_in(parent: Path) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def parts_of(started: "Future[Any] | AsyncSaveResponse") -> tuple["Future[Any]", "Future[Any] | None"]:
    if isinstance(started, AsyncSaveResponse):
        return started.upload_completion, started.staging_completion
    return started, None


def cairn_saves(kind: AsyncCheckpointerType, *, later: bool) -> Save:
    stager = cairn.staging.DefaultStager(LATER) if later else None
    return lambda state, directory: cairn.async_save(
        state, checkpoint_id=directory, async_checkpointer_type=kind, async_stager=stager, no_dist=True
    )


def dcp_saves(kind: AsyncCheckpointerType, options: StagingOptions | None) -> Save:
    def save(state: State, directory: Path) -> Any:
        # A stager for each save: torch 2.11 closes the stager at the end of a save. torch keeps freed pinned memory.
        stager = DefaultStager(options) if options is not None else None
        return dcp.async_save(
            state,
            storage_writer=dcp.FileSystemWriter(directory, sync_files=True),
            async_checkpointer_type=kind,
            async_stager=stager,
        )

    return save


def small_state(count: int) -> State:
    return {f"layers.{i}.weight": torch.randn(1024, device="cuda") for i in range(count)}


def large_state(gibibytes: float) -> State:
    piece = 256 << 20
    count = max(int(gibibytes * GIB) // piece, 1)
    return {f"layers.{i}.weight": torch.randn(piece // 4, device="cuda") for i in range(count)}


def measure(save: Save, state: State, parent: Path, copy_seconds: float, rounds: int, warm: int = 2) -> dict[str, Any]:
    """The figures of a library, without the first saves: new memory, and with Cairn the registration of two arenas."""
    calls, fenced, staged, durable = [], [], [], []
    for number in range(rounds + warm):
        with directory_in(parent) as directory:
            torch.cuda.synchronize()
            begin = time.perf_counter()
            upload, staging = parts_of(save(state, directory / "checkpoint"))
            call = time.perf_counter() - begin
            if staging is not None:
                pending_saves.fence_staging() if isinstance(upload, cairn.SaveFuture) else staging.result()
                fence = time.perf_counter() - begin
                staging.result()
            stage = time.perf_counter() - begin
            upload.result()
            end = time.perf_counter() - begin
            if number == 0:
                first = call
            if number < warm:
                time.sleep(1.0)  # the registration beside the trainer
                continue
            calls.append(call)
            staged.append(stage)
            durable.append(end)
            if staging is not None:
                fenced.append(fence)
    figures: dict[str, Any] = {
        "first call s": first,
        "call s": statistics.median(calls),
        "call in copies": statistics.median(calls) / copy_seconds,
        "staged in copies": statistics.median(staged) / copy_seconds,
        "durable s": statistics.median(durable),
    }
    if fenced:
        figures["call and fence in copies"] = statistics.median(fenced) / copy_seconds
    return figures


def drop_from_cache(directory: Path) -> None:
    for path in directory.iterdir():
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def loads(state: State, parent: Path, copy_seconds: float, rounds: int) -> dict[str, Any]:
    """Blocking saves, and loads of the checkpoint: onto the device and into the CPU, cold and from the page cache.

    The stock library loads the same checkpoint, so that both read the same bytes of the same files.
    """
    on_cpu = {key: torch.zeros(value.shape, dtype=value.dtype) for key, value in state.items()}
    found: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        found.setdefault(name, []).append(seconds_of(functools.partial(call, *arguments, **options)))

    with directory_in(parent) as directory:
        for number in range(rounds):
            checkpoint, stock = directory / str(number), directory / f"stock {number}"
            timed("blocking save s", cairn.save, state, checkpoint_id=checkpoint, no_dist=True)
            stock_writer = dcp.FileSystemWriter(stock, sync_files=True)
            timed("blocking save of DCP s", dcp.save, state, storage_writer=stock_writer, no_dist=True)
            shutil.rmtree(stock)
            for library, load in (("", cairn.load), (" of DCP", dcp.load)):
                for place, target in (("CPU", on_cpu), ("device", state)):
                    drop_from_cache(checkpoint)
                    timed(
                        f"cold load{library} onto the {place} s", load, target, checkpoint_id=checkpoint, no_dist=True
                    )
            for library, load in (("", cairn.load), (" of DCP", dcp.load)):  # the last cold load filled the page cache
                timed(f"warm load{library} onto the device s", load, state, checkpoint_id=checkpoint, no_dist=True)
            shutil.rmtree(checkpoint)
    figures: dict[str, Any] = {name: statistics.median(seconds) for name, seconds in found.items()}
    onto_cpu, onto_device = (figures[f"cold load onto the {place} s"] for place in ("CPU", "device"))
    figures["share of the slower of a load onto the CPU and the copy"] = max(onto_cpu, copy_seconds) / onto_device
    return figures


# A program that writes past the page cache with four threads at low priority, until it is ended: the load that any
# writer of checkpoints puts on the machine.
BARE_WRITER = """
import mmap, os, sys, threading
os.nice(10)
block = mmap.mmap(-1, 4 << 20)
block.write(os.urandom(4 << 20))
def write(number):
    file = os.open(f"{sys.argv[1]}/{number}", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    while True:
        for place in range(128):
            os.pwrite(file, block, place * (4 << 20))
for number in range(4):
    threading.Thread(target=write, args=(number,)).start()
"""


class BareWriter:
    """Runs BARE_WRITER as long as the object is in use."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", BARE_WRITER, str(directory)])

    def __enter__(self) -> "BareWriter":
        time.sleep(0.5)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def training_meanwhile(
    save: Save | None, state: State, parent: Path, rounds: int, trainers: list[str]
) -> dict[str, float]:
    """Steps per second while a save drains, as a share of the rate in the windows before and after.

    Without `save`: while a bare program writes.
    """
    shares = {}
    for name in trainers:
        width, layers, batch = TRAINERS[name]
        trainer = Trainer(width, layers, batch)
        trainer.rate_while(lambda: True, 0.5)
        found = []
        for _ in range(rounds):
            before = trainer.rate_while(lambda: True, WINDOW_SECONDS)
            with directory_in(parent) as directory:
                if save is None:
                    with BareWriter(directory):
                        during = trainer.rate_while(lambda: True, 2 * WINDOW_SECONDS)
                else:
                    upload, staging = parts_of(save(state, directory / "checkpoint"))
                    if staging is not None:
                        staging.result()
                    during = trainer.rate_while(lambda upload=upload: not upload.done(), 2 * WINDOW_SECONDS)
                    upload.result()
            after = trainer.rate_while(lambda: True, WINDOW_SECONDS)
            found.append(during / ((before + after) / 2))
        shares[name] = statistics.median(found)
    return shares


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    arguments.add_argument("--gib", type=float, default=4.0)
    arguments.add_argument("--large-gib", type=float, help="a further state, for Cairn with threads only")
    arguments.add_argument("--small-count", type=int, default=10_000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--peers", action="store_true", help="DCP beside Cairn, on the first size")
    arguments.add_argument("--only", choices=KINDS, nargs="+", default=list(KINDS))
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    report: dict[str, Any] = {}

    def note(name: str, figures_of: Callable[[], dict[str, Any]]) -> None:
        try:
            figures = figures_of()
        except Exception as error:  # a library that fails is named, and the rest is measured
            figures = {"failed": f"{type(error).__name__}: {error}"[:300]}
        report[name] = figures
        rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in figures.items()}
        print(f"  {name}: {rounded}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(report, indent=1))

    thread, process = AsyncCheckpointerType.THREAD, AsyncCheckpointerType.PROCESS
    bandwidth = pinned_bandwidth()
    report["pinned copy GB/s"], report["device"] = bandwidth / 1e9, torch.cuda.get_device_name()
    print(f"torch's pinned copy: {bandwidth / 1e9:.1f} GB/s on {report['device']}", flush=True)
    ours = {
        "cairn threads": cairn_saves(thread, later=False),
        "cairn process": cairn_saves(process, later=False),
        "cairn threads, staged later": cairn_saves(thread, later=True),
        "cairn process, staged later": cairn_saves(process, later=True),
    }
    theirs = {
        "dcp threads": dcp_saves(thread, None),
        "dcp process": dcp_saves(process, None),
        "dcp threads, pinned stager": dcp_saves(thread, PINNED),
    }
    directory, rounds = options.directory, options.rounds

    def measure_all(libraries: dict[str, Save], gib: float, title: str, rounds: int, warm: int = 2) -> None:
        state = large_state(gib)
        copy_seconds = sum(tensor.nbytes for tensor in state.values()) / bandwidth
        print(f"{gib} GiB in {len(state)} tensors; torch's pinned copy takes {copy_seconds * 1e3:.1f} ms", flush=True)
        for name, save in libraries.items():
            note(title + name, functools.partial(measure, save, state, directory, copy_seconds, rounds, warm))

    if "calls" in options.only:
        measure_all(ours, options.gib, "", rounds)
    if "calls" in options.only and options.peers:
        measure_all(theirs, options.gib, "", 1, 1)
    state = large_state(options.gib)
    if "load" in options.only:
        copy_seconds = sum(tensor.nbytes for tensor in state.values()) / bandwidth
        note("cairn blocking", functools.partial(loads, state, directory, copy_seconds, rounds))
    for name, save in {"bare writer": None, **ours}.items() if "rate" in options.only else []:
        work = functools.partial(training_meanwhile, save, state, directory, max(rounds // 2, 1), list(TRAINERS))
        note(f"rate of training, {name}", work)
    for name, save in theirs.items() if options.peers and "rate" in options.only else []:
        note(
            f"rate of training, {name}",
            functools.partial(training_meanwhile, save, state, directory, 1, ["small steps"]),
        )
    del state
    torch.cuda.empty_cache()
    small = small_state(options.small_count)
    for name, save in ours.items() if "small" in options.only else []:
        title = f"{options.small_count} tensors of 4 KiB (copies of 1 ms), {name}"
        note(title, functools.partial(measure, save, small, directory, 1e-3, rounds))
    if options.large_gib:
        with_threads = {name: save for name, save in ours.items() if "threads" in name}
        measure_all(with_threads, options.large_gib, f"{options.large_gib} GiB, ", 1)
    os._exit(0)  # DCP's processes and stagers do not end by themselves


if __name__ == "__main__":
    main()
