"""Saves and loads by several ranks: Cairn beside torch.distributed.checkpoint, in turn, in the same processes.

Run as a program under torchrun, the module is a rank; imported, the module starts the ranks and returns rank 0's
figures. Both libraries sync their writes. Times run from barrier to barrier: the slowest rank counts.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from peak_memory import PeakMemory
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

import cairn

TENSORS = 16
COLUMNS = 8192  # float32: half a row is a run of 16 KiB; see `WIDE`
WIDE = 131072  # half a row is a run of 256 KiB

Call = Callable[[dict[str, Any], Path], Any]


def stock_save(state: dict[str, Any], directory: Path) -> None:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(directory, sync_files=True))


def cairn_save(state: dict[str, Any], directory: Path) -> None:
    cairn.save(state, checkpoint_id=directory)


def stock_load(state: dict[str, Any], directory: Path) -> None:
    dcp.load(state, checkpoint_id=directory)


def cairn_load(state: dict[str, Any], directory: Path) -> None:
    cairn.load(state, checkpoint_id=directory)


LIBRARIES: dict[str, tuple[Call, Call]] = {"cairn": (cairn_save, cairn_load), "dcp": (stock_save, stock_load)}


def state_of(mesh: DeviceMesh, placement: Placement, mebibytes: int, columns: int) -> dict[str, Any]:
    """Returns tensors of `mebibytes` in sum, sharded or replicated, with equal numbers for every mesh."""
    rows = mebibytes * 2**20 // (4 * columns * TENSORS)
    generator = torch.Generator().manual_seed(1)
    state: dict[str, Any] = {}
    for number in range(TENSORS):
        whole = torch.empty(rows, columns).uniform_(-1, 1, generator=generator)
        state[f"layers.{number}.weight"] = distribute_tensor(whole, mesh, [placement])
    return state


def bytes_read(counter: str = "rchar") -> int:
    """Returns the bytes that this process has read, by the kernel's counter (`read_bytes`: from the device)."""
    lines = (line.split() for line in Path("/proc/self/io").read_text().splitlines())
    return next(int(words[1]) for words in lines if words[0] == f"{counter}:")


def timed(call: Callable[[], Any]) -> float:
    dist.barrier()
    start = time.perf_counter()
    call()
    dist.barrier()
    return time.perf_counter() - start


def summed(number: float) -> float:
    tensor = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(tensor)
    return float(tensor)


def local_bytes(state: dict[str, Any]) -> int:
    return sum(tensor.to_local().nbytes for tensor in state.values() if isinstance(tensor, DTensor))


def forget_files(directory: Path) -> None:
    for path in directory.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def placement_of(arguments: argparse.Namespace, dimension: int) -> Placement:
    return Replicate() if arguments.replicas else Shard(dimension)


def measure_saves(arguments: argparse.Namespace, mesh: DeviceMesh) -> dict[str, float]:
    found = {}
    state = state_of(mesh, placement_of(arguments, 0), arguments.mib, arguments.columns)
    for name, (save, _) in LIBRARIES.items():
        directory = arguments.directory / name
        if dist.get_rank() == 0:
            shutil.rmtree(directory, ignore_errors=True)
            os.sync()
        dist.barrier()
        found[f"{name} save"] = timed(lambda save=save, directory=directory: save(state, directory))
    return found


def measure_loads(arguments: argparse.Namespace, mesh: DeviceMesh) -> dict[str, float]:
    found = {}
    placement = placement_of(arguments, arguments.load_dimension)
    state = state_of(mesh, placement, arguments.mib, arguments.columns)
    expected = [tensor.to_local().clone() for tensor in state.values()]
    for name, (_, load) in LIBRARIES.items():
        for tensor in state.values():
            tensor.to_local().zero_()
        directory = arguments.directory / name
        if dist.get_rank() == 0:
            forget_files(directory)
        dist.barrier()
        peak, before, before_device = PeakMemory(), bytes_read(), bytes_read("read_bytes")
        found[f"{name} load"] = timed(lambda load=load, directory=directory: load(state, directory))
        read = bytes_read() - before
        device_bytes = bytes_read("read_bytes") - before_device
        found[f"{name} copies from the device"] = summed(device_bytes) / (arguments.mib * 2**20)
        found[f"{name} read per byte needed"] = summed(read) / summed(local_bytes(state))
        found[f"{name} peak MiB"] = peak.mib()
        for tensor, wanted in zip(state.values(), expected, strict=True):
            if not torch.equal(tensor.to_local(), wanted):
                raise SystemExit(f"{name} loads other numbers than were saved")
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("save", "load"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    parser.add_argument("--load-dimension", type=int, default=0)
    parser.add_argument("--replicas", action="store_true", help="every rank has all numbers")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    measure = measure_saves if arguments.action == "save" else measure_loads
    # An unmeasured first round: imports, threads and connections come at the first call.
    small = argparse.Namespace(**{**vars(arguments), "mib": 8, "directory": arguments.directory / "small"})
    if dist.get_rank() == 0:
        small.directory.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    measure_saves(small, mesh)
    measure_loads(small, mesh)
    found = measure(arguments, mesh)
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()
    return 0


# --- from the outside


def run_ranks(count: int, action: str, directory: Path, *options: str) -> dict[str, float]:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={count}", __file__, action]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(
        [*command, str(directory), *options], check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout
    return dict(json.loads(output.splitlines()[-1]))


def measure_ranks(scratch: Path, mebibytes: int) -> dict[str, dict[str, float]]:
    """Returns figures by library.

    2 ranks save and load; 2 ranks load a save of 4 ranks, cut along the dimension of the save and along the second; 1,
    2, 4 and 8 ranks load replicas.
    """
    figures: dict[str, dict[str, float]] = {}

    def take(prefix: str, found: dict[str, float]) -> None:
        for name in LIBRARIES:
            for key, value in found.items():
                if key.startswith(name + " "):
                    figures.setdefault(f"{prefix} {key.removeprefix(name + ' ')}", {})[name] = value

    size = ("--mib", str(mebibytes))
    wide = (*size, "--columns", str(WIDE))
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        directory = Path(folder)
        take("2 ranks", run_ranks(2, "save", directory, *size))
        take("2 ranks", run_ranks(2, "load", directory, *size))
        run_ranks(4, "save", directory, *size)
        take("4 to 2", run_ranks(2, "load", directory, *size))
        run_ranks(4, "save", directory, *wide)
        take("4 to 2, runs of 256 KiB", run_ranks(2, "load", directory, *wide, "--load-dimension", "1"))
        for count in (1, 2, 4, 8):
            run_ranks(count, "save", directory, *size, "--replicas")
            take(f"replicas, {count} ranks", run_ranks(count, "load", directory, *size, "--replicas"))
    return figures


if __name__ == "__main__":
    sys.exit(main())
