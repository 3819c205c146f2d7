"""Megatron-core's ``dist_checkpointing``, switched to Cairn by one line; run by torchrun.

The program saves by rows (synchronously, by a forked process and by a persistent process) and loads by columns. Then
Cairn is uninstalled: stock Megatron loads the synchronous checkpoint and saves. Cairn, installed again, loads the stock
checkpoint. The state holds a sharded tensor, a tensor replicated on both ranks, an object of each rank, and Megatron's
common state.
"""

import multiprocessing
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import without_cuda  # noqa: F401 - before Megatron
from engine_notes import leave, note, start

import cairn

cairn.install()

from megatron.core import dist_checkpointing  # noqa: E402
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue  # noqa: E402
from megatron_saves import save_by, sharded  # noqa: E402

ROWS, COLUMNS = 6, 8
COMMON = {"iteration": 7, "args": {"lr": 0.5, "name": "first"}}


def whole(mode: int) -> torch.Tensor:
    return torch.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS) + 100 * mode


def state(mode: int) -> dict[str, Any]:
    return {**sharded(whole(mode), 0, torch.full((3,), float(mode)), {"seed": dist.get_rank() + mode}), **COMMON}


def save(directory: Path, mode: int, queue: AsyncCallsQueue | None) -> None:
    save_by(queue, state(mode), directory)


def load(directory: Path, mode: int) -> None:
    """Loads by columns. Fails if a bit differs."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    target = sharded(torch.zeros(ROWS, COLUMNS), 1, torch.zeros(3), None)
    loaded = dist_checkpointing.load(target, str(directory))
    assert torch.equal(loaded["model"]["w"], whole(mode).chunk(ranks, 1)[rank]), loaded
    assert torch.equal(loaded["model"]["b"], torch.full((3,), float(mode))), loaded
    assert loaded["rng"] == {"seed": rank + mode}, loaded
    assert {key: loaded[key] for key in COMMON} == COMMON, loaded


def main() -> None:
    folder = Path(sys.argv[1])
    start()
    persistent = AsyncCallsQueue(persistent=True)
    queues = {"sync": None, "fork": AsyncCallsQueue(persistent=False), "persistent": persistent}
    for mode, (name, queue) in enumerate(queues.items(), 1):
        save(folder / name, mode, queue)
        load(folder / name, mode)
        note(folder, name)
    cairn.uninstall()
    load(folder / "sync", 1)
    save(folder / "stock", 4, None)
    note(folder, "without")
    cairn.install()
    load(folder / "stock", 4)
    note(folder, "switched")
    persistent.close()
    for child in multiprocessing.active_children():
        child.terminate()
    leave()


if __name__ == "__main__":
    main()
