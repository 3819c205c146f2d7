"""The first asynchronous save of a process: how long the call blocks the trainer, in copies of the state.

    python bench/first_save.py --mib 1200 --rounds 5 --directory DIR

Each save has a process of its own, forked from a process that has imported torch. All processes load the state first.
The rows take turns in every round: Cairn after a load with a declared stager (the memory is prepared, after `--pause`
seconds), Cairn without a declaration, and DCP with threads and with a process. The unit is a copy of all tensors by
one thread into used memory, in the same process, after the save.
"""

import argparse
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import cairn
from cairn.staging import DefaultStager, StagingOptions

ROWS = ("cairn, prepared", "cairn, process, prepared", "cairn", "cairn, process", "dcp", "dcp, process")


def state_of(mib: int) -> dict[str, torch.Tensor]:
    return {f"w{i}": torch.zeros(mib * 2**20 // 4 // 16) for i in range(16)}


def copies(state: dict[str, torch.Tensor]) -> float:
    """Returns the seconds of the fastest of three copies into used memory."""
    targets = [torch.ones_like(tensor) for tensor in state.values()]
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        for target, tensor in zip(targets, state.values(), strict=True):
            target.copy_(tensor)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def one_save(row: str, source: Path, target: Path, mib: int, pause: float) -> tuple[float, float]:
    """Returns the seconds of the call, and of a copy."""
    kind = AsyncCheckpointerType.PROCESS if "process" in row else AsyncCheckpointerType.THREAD
    if "prepared" in row and kind is AsyncCheckpointerType.PROCESS:
        cairn.install(async_checkpointer_type=kind)
    elif "prepared" in row:
        DefaultStager(StagingOptions(False, False, False, False))
    state = state_of(mib)
    cairn.load(state, checkpoint_id=source, no_dist=True)
    time.sleep(pause)
    if row == "dcp, process":  # needs a process group
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    begin = time.perf_counter()
    if row.startswith("dcp"):
        future: Any = dcp.state_dict_saver.async_save(
            state, checkpoint_id=target, no_dist=not dist.is_initialized(), async_checkpointer_type=kind
        )
    else:
        future = cairn.async_save(state, checkpoint_id=target, no_dist=True, async_checkpointer_type=kind)
    blocked = time.perf_counter() - begin
    future.result()
    return blocked, copies(state)


def in_child(*arguments: Any) -> tuple[float, float]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, "{} {}".format(*one_save(*arguments)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as result:
        blocked, copy = result.read().split()
    os.waitpid(child, 0)
    return float(blocked), float(copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=1200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause", type=float, default=3.0)
    parser.add_argument("--directory", type=Path, default=Path("/tmp"))
    given = parser.parse_args()
    source, target = given.directory / "first-save-source", given.directory / "first-save-target"
    torch.set_num_threads(1)  # a forked child can't use the threads of torch
    cairn.save(state_of(given.mib), checkpoint_id=source, no_dist=True)
    found: dict[str, list[tuple[float, float]]] = {row: [] for row in ROWS}
    for _ in range(given.rounds):
        for row, samples in found.items():
            samples.append(in_child(row, source, target, given.mib, given.pause))
            shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(source)
    for row, samples in found.items():
        quotients = [blocked / copy for blocked, copy in samples]
        blocked = statistics.median(blocked for blocked, _ in samples)
        spread = f"{min(quotients):.2f} to {max(quotients):.2f}"
        sys.stdout.write(f"{row:26} {blocked:.3f} s  {statistics.median(quotients):.2f} copies ({spread})\n")


if __name__ == "__main__":
    main()
